"""How large a thing may be: a file 400 lines, a function 60, a folder 14 entries. What is larger still is listed; a list never grows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.arrows import ROOMS, ROOT

LINES, FUNCTION, ENTRIES = 400, 60, 14
FILES_SO_FAR = {
    "balancer/gossip.py", "balancer/membership.py", "checkpoint/take.py", "cli/mosctl.py", "cli/mosrun.c",
    "deputy/stub.py", "engine/context/context.py", "engine/criu/forkcopy.py", "engine/pour/refill.py", "kernel_helpers/calls/table.py",
    "kernel_helpers/link/away/direct_files.c", "kernel_helpers/link/link.py", "kernel_helpers/postcopy/receive.c",
    "kernel_helpers/process/inject.c", "kernel_helpers/process/inject.py", "kernel_helpers/process/inject_many.c",
    "kernel_helpers/process/many.py", "kernel_helpers/stream/stream.c", "kernel_helpers/usage/account.c", "node/guests/guests.py",
    "remote/arrival.py", "remote/guest.py", "remote/marshal.py",
}  # fmt: skip
"""Two rooms each, that are to be parted."""
FUNCTIONS_SO_FAR = {
    "cli/mosctl.py: parser": "one line for each option",
    "deputy/homecoming.py: come_home": "to be parted with the move as a value",
    "deputy/out_and_hop.py: leave": "to be parted with the move as a value",
    "engine/mappings/layout.py: make_plan": "to be parted",
    "engine/pour/refill.py: refill": "to be parted",
    "kernel_helpers/link/home/calls.c: home_take_call": "to be parted",
    "kernel_helpers/link/link.py: _native": "one line for each function of the library",
    "kernel_helpers/mfs/client/main.c: main": "one line for each option",
    "kernel_helpers/mfs/client/promises.c: mfs_promises_asked": "to be parted",
    "kernel_helpers/mfs/server/files/nodes.c: mfs_node_enter": "to be parted",
    "kernel_helpers/mfs/server/serving/main.c: main": "one line for each option",
    "kernel_helpers/pages/receive.c: farhome_pages_receive": "to be parted",
    "kernel_helpers/process/inject.c: inject_call": "to be parted",
    "remote/arrival.py: arrive": "to be parted with an arrival that undoes its steps",
    "remote/freezing.py: freeze": "to be parted",
    "remote/guest.py: handle": "one line for each frame",
}
FOLDERS_SO_FAR = {
    "balancer": "the engine of balancing and the simulator",
    "bench": "a file for each bench and its peer",
    "cli": "a file for each command",
    "deputy": "to be parted",
    "kernel_helpers": "one folder for each topic",
    "monitor": "to be parted",
    "remote": "to be parted",
}


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".c", ".h"):
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The name of each function of a file, and its lines."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
    elif path.suffix == ".c":
        lines = path.read_text().splitlines()
        head = 0
        for number, line in enumerate(lines):
            if line == "{":
                head = next(at for at in range(number - 1, -1, -1) if lines[at][:1] not in (" ", "\t", ""))
            elif line == "}":
                yield lines[head].partition("(")[0].split()[-1].lstrip("*"), number - head + 1


def test_no_file_is_long() -> None:
    assert {str(path.relative_to(ROOT)) for path in sources() if len(path.read_text().splitlines()) > LINES} == FILES_SO_FAR


def test_no_function_is_long() -> None:
    found = {f"{path.relative_to(ROOT)}: {name}" for path in sources() for name, lines in functions(path) if lines > FUNCTION}
    assert found == set(FUNCTIONS_SO_FAR)


def test_no_folder_is_large() -> None:
    entries = {folder: [path for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py")] for folder in
               {path.parent for path in sources()}}  # fmt: skip
    assert {str(folder.relative_to(ROOT)) for folder, found in entries.items() if len(found) > ENTRIES} == set(FOLDERS_SO_FAR)


def test_functions_of_c_are_found() -> None:
    found = dict(functions(ROOT / "kernel_helpers/pages/written.c"))
    assert found["farhome_pages_written"] > 10 and "count_bytes" in found
