"""arrays.py ROUNDS: NumPy over arrays of many kinds; prints a digest of every result, which lives in vector registers while it is made.

Products and solutions of matrices (the BLAS that NumPy was built with), element-wise functions, sorting, Fourier transforms,
sums in pairs, integers and booleans. All of it comes from one seed.
"""

from __future__ import annotations

import hashlib
import sys

import numpy


def digest(array: numpy.ndarray) -> str:
    return hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def main() -> None:
    chance = numpy.random.default_rng(7)
    for step in range(int(sys.argv[1])):
        a, b = chance.standard_normal((2, 300, 300))
        x = numpy.exp(-numpy.abs(chance.standard_normal(400_000)))
        y = numpy.sqrt(x) * numpy.log1p(x)
        numbers = chance.integers(0, 1 << 30, 300_000)
        numbers.sort()
        kept = x[(x > 0.25) & (y < 0.5)].astype(numpy.float32)
        results = (a @ b, numpy.linalg.solve(a, b[:, 0]), y, numpy.fft.rfft(y), numbers, kept)
        print(step, *map(digest, results), repr(float(y.sum())), flush=True)


main()
