"""C files to be compiled: as large as wanted, with what programs include, and always the same."""

from __future__ import annotations

INCLUDED = (
    "ctype.h", "errno.h", "fcntl.h", "limits.h", "math.h", "netinet/in.h", "poll.h", "pthread.h", "signal.h", "stdint.h", "stdio.h",
    "stdlib.h", "string.h", "sys/mman.h", "sys/socket.h", "sys/stat.h", "sys/wait.h", "time.h", "unistd.h",
)  # fmt: skip


def c_file(name: str, functions: int, includes: str = "") -> str:
    """Return a C file whose functions are called NAME_0, NAME_1, …; the last, NAME, calls them all: int NAME(int)."""
    lines = [includes, *(f"#include <{header}>" for header in INCLUDED)]
    lines += [_function(f"{name}_{number}", number) for number in range(functions)]
    calls = "".join(f"    value = {name}_{number}(value);\n" for number in range(functions))
    lines.append(f"int {name}(int value)\n{{\n{calls}    return value;\n}}\n")
    return "\n".join(lines)


def _function(name: str, number: int) -> str:
    return f"""
static int {name}(int value)
{{
    unsigned table[16] = {{{number}, {number + 1}, {number + 2}}};
    char text[64];
    for (int i = 0; i < {number % 13 + 5}; i++) {{
        table[i % 16] += (unsigned)value * {number * 7 + 3}u ^ table[(i + {number % 5}) % 16];
        switch (table[i % 16] % 7) {{
        case 0: value += (int)table[i % 3]; break;
        case 1: value ^= i << {number % 7}; break;
        case 2: snprintf(text, sizeof text, "%d %u", value, table[0]); value += (int)strlen(text); break;
        case 3: value -= isalpha(value & 127) ? {number % 11} : i; break;
        default: value = value * 31 + (int)table[{number % 16}];
        }}
    }}
    return value;
}}"""
