"""Do a fixed piece of work again and again and write the nanoseconds that each took, its line included."""

import time

last = time.monotonic_ns()
state = 1
table: dict[int, int] = {}
while True:
    for _ in range(1_000_000):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        table[state & 4095] = state
    end = time.monotonic_ns()
    print(end - last, flush=True)
    last = end
