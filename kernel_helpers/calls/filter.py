"""The seccomp filter of a guest, made from the system-call table."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

from kernel_helpers.calls.numbers import NUMBERS
from kernel_helpers.calls.table import Class, Row, by_number

AUDIT_ARCH_X86_64 = 0xC000003E
X32_BIT = 0x40000000
ENOSYS = 38
RET_ALLOW = 0x7FFF0000
RET_NOTIFY = 0x7FC00000
RET_TRACE = 0x7FF00000
RET_ENOSYS = 0x00050000 | ENOSYS
_LOAD, _AND, _EQUAL, _AT_LEAST, _GREATER, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x25, 0x05, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


Verdicts = Callable[[Class], int]


def _verdicts(notify: int, has_fixed_ids: bool) -> Verdicts:
    found = {Class.LOCAL: RET_ALLOW, Class.REFUSE: RET_ENOSYS} | ({Class.IDS: RET_ALLOW} if has_fixed_ids else {})
    return lambda class_: found.get(class_, notify)


def _leaf(row: Row | None, notify: int, verdict_of: Verdicts) -> list[Instruction]:
    """The decision for one call: its variants in order (only the low half of an argument decides), then its class."""
    if row is None:
        return [(_RETURN, 0, 0, notify)]
    code: list[Instruction] = []
    own = verdict_of(row.class_)
    verdicts = {verdict_of(v.class_) for v in row.variants}
    if verdicts - {own}:
        for variant in row.variants:
            verdict = verdict_of(variant.class_)
            if any(variant.also):
                raise ValueError(f"{row.name}: the filter decides by one argument only")
            if verdict != notify and variant.mask >> 32:
                raise ValueError(f"{row.name}: the filter decides by 32 bits of an argument only")
            code.append((_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * variant.argument))
            if variant.mask & 0xFFFFFFFF != 0xFFFFFFFF:
                code.append((_AND, 0, 0, variant.mask & 0xFFFFFFFF))
            code.append((_EQUAL, 0, 1, variant.value & 0xFFFFFFFF))
            code.append((_RETURN, 0, 0, verdict))
    code.append((_RETURN, 0, 0, own))
    return code


def _ranges(notify: int, has_fixed_ids: bool) -> list[tuple[int, list[Instruction]]]:
    """(first number, decision) in ascending order; neighbours with the same decision are one range."""
    table, verdicts = by_number(), _verdicts(notify, has_fixed_ids)
    result: list[tuple[int, list[Instruction]]] = []
    for number in range(max(table) + 2):
        leaf = _leaf(table.get(number), notify, verdicts)
        if not result or result[-1][1] != leaf:
            result.append((number, leaf))
    return result


def _search(ranges: Sequence[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Binary search by number. A conditional jump reaches 255 instructions, so the far side is reached by a long one."""
    if len(ranges) == 1:
        return list(ranges[0][1])
    middle = len(ranges) // 2
    low, high = _search(ranges[:middle]), _search(ranges[middle:])
    pivot = ranges[middle][0]
    if len(low) <= 255:
        return [(_AT_LEAST, len(low), 0, pivot), *low, *high]
    return [(_AT_LEAST, 0, 1, pivot), (_JUMP, 0, 0, len(low)), *low, *high]


@functools.cache
def instructions(notify: int = RET_NOTIFY, has_fixed_ids: bool = False) -> tuple[Instruction, ...]:
    """Return the program; `notify` is what calls that are not the node's own end in (RET_NOTIFY, or RET_TRACE for ptrace). has_fixed_ids:
    the process cannot have other ids than it has here."""
    return (
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_EQUAL, 1, 0, AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, RET_ENOSYS),  # int 0x80 and friends
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        (_AT_LEAST, 0, 1, X32_BIT),
        (_RETURN, 0, 0, RET_ENOSYS),
        *_search(_ranges(notify, has_fixed_ids)),
    )


def program(notify: int = RET_NOTIFY, has_fixed_ids: bool = False) -> bytes:
    """Return an array of `struct sock_filter`, 8 bytes each. Errors: ValueError when it would exceed the kernel's 4096."""
    code = instructions(notify, has_fixed_ids)
    if len(code) > 4096:
        raise ValueError(f"the filter has {len(code)} instructions")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def watching() -> bytes:
    """Another program, over the first: it stops what changes or returns masks of signals (SECCOMP_RET_TRACE), and allows all else."""
    calls = [NUMBERS[name] for name in ("rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigpending", "rt_sigaction")]
    code: list[Instruction] = [(_LOAD, 0, 0, _OFFSET_NUMBER)]
    code += [(_EQUAL, len(calls) - index, 0, number) for index, number in enumerate(calls)]
    code += [(_RETURN, 0, 0, RET_ALLOW), (_RETURN, 0, 0, RET_TRACE)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def evaluate(number: int, arguments: Sequence[int], arch: int = AUDIT_ARCH_X86_64, notify: int = RET_NOTIFY) -> int:
    """Return what the program returns for a call: the kernel's interpreter in small, for tests and for --trace."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(a & (1 << 64) - 1 for a in arguments))
    code = instructions(notify, False)  # as program() asks for them: they are made once
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        if operation == _LOAD:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == _AND:
            accumulator &= constant
        elif operation == _EQUAL:
            at += if_true if accumulator == constant else if_false
        elif operation == _AT_LEAST:
            at += if_true if accumulator >= constant else if_false
        elif operation == _JUMP:
            at += constant
        else:
            return constant
