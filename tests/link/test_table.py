"""The table covers the kernel's list, and what is generated from it says the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_helpers.calls import documentation, table
from kernel_helpers.calls import filter as bpf
from kernel_helpers.calls.numbers import NUMBERS
from kernel_helpers.calls.table import Class, Shape

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def test_every_call_of_the_kernels_header_has_a_row() -> None:
    header = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    assert len(header) > 300
    rows = {row.name: row.number for row in table.rows()}
    assert {name: number for name, number in header.items() if rows.get(name) != number} == {}


def test_every_call_of_newer_kernels_that_we_know_has_a_row() -> None:
    rows = {row.name: row.number for row in table.rows()}
    assert {name: number for name, number in NUMBERS.items() if rows.get(name) != number} == {}


def test_filter_and_table_agree_on_every_call_and_variant() -> None:
    for row in table.rows():
        cases: list[tuple[int, ...]] = [(0xFFFFFF00,) * 6]
        for variant in row.variants:
            values = [0xFFFFFF00] * 6
            values[variant.argument] = variant.value
            cases.append(tuple(values))
        for arguments in cases:
            chosen = row.select(arguments).class_
            expected = {Class.LOCAL: bpf.RET_ALLOW, Class.REFUSE: bpf.RET_ENOSYS}.get(chosen, bpf.RET_NOTIFY)
            assert bpf.evaluate(row.number, arguments) == expected, (row.name, arguments)


def test_unknown_calls_go_home() -> None:
    assert table.row_of(9999).class_ is Class.GO_HOME
    assert bpf.evaluate(9999, (0,) * 6) == bpf.RET_NOTIFY
    assert bpf.evaluate(max(table.by_number()) + 1, (0,) * 6) == bpf.RET_NOTIFY


@pytest.mark.parametrize(("number", "arch"), [(3, 0x40000003), (0x40000000, bpf.AUDIT_ARCH_X86_64), (0xFFFFFFFF, bpf.AUDIT_ARCH_X86_64)])
def test_foreign_abis_are_refused(number: int, arch: int) -> None:
    assert bpf.evaluate(number, (0,) * 6, arch) == bpf.RET_ENOSYS


def test_the_bpf_program_has_the_evaluated_instructions() -> None:
    assert len(bpf.program()) == 8 * len(bpf.instructions())
    assert len(bpf.instructions()) < 1000


def _entries(row: table.Row) -> list[table.Row | table.Variant]:
    return [row, *row.variants]


def test_shapes_of_forwarded_calls_refer_to_arguments_that_exist() -> None:
    for row in table.rows():
        for entry in _entries(row):
            for argument in entry.arguments:
                if argument.size_kind and argument.shape is not Shape.NUMBER:
                    assert argument.size_argument < len(entry.arguments), row.name
            if entry.class_ in (Class.LOCAL, Class.KEYS, Class.GO_HOME, Class.REFUSE):
                assert entry.arguments == (), row.name


@pytest.mark.parametrize(
    "text",
    [
        "0 read nowhere",
        "0 read forward out(",
        "0 read forward out(@7)",
        "0 a local\n0 b local",
        "0 read forward in(@1-1)",
        "0 read forward some(8)",
        "0 read forward a b c d e f g",
        "    when 1=2 local",
    ],
)
def test_a_broken_table_is_named_by_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"calls\.table line \d"):
        table.parse(text)


def test_few_calls_take_a_process_home_and_each_says_why() -> None:
    always, sometimes = table.taken_home()
    assert len(always) <= 40, [row.name for row in always]
    assert [row.name for row in always if not row.note] == []
    entries = [entry for row in sometimes for entry in _entries(row)]
    assert [entry for entry in entries if entry.class_ is Class.GO_HOME and not entry.note] == []


def test_documentation_is_up_to_date() -> None:
    assert (ROOT / "docs/calls.md").read_text() == documentation.documentation()


def test_table_can_be_generated_without_the_project(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-I", ROOT / "kernel_helpers/calls/table.py", "--c", tmp_path / "calls.inc"], check=True, timeout=30)
    assert "call_rows" in (tmp_path / "calls.inc").read_text()
