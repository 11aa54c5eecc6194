"""Images of CRIU that come from a peer: one process of ours is taken, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.context import registers
from engine.criu import images, inspection
from engine.criu.images import Entry
from kernel_helpers.common.errors import FarhomeError
from tests.engine.support import counts_on, images_of, running


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, counter: str) -> Path:
    """Images of a process with three threads."""
    directory = tmp_path_factory.mktemp("dumped") / "images"
    with running([counter, "3"], "farhome-a") as program:
        counts_on(program, threads=3)
        images_of(program.pid, directory)
    return directory


@pytest.fixture
def arrived(dumped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dumped, tmp_path / "images"))


def _pid(directory: Path) -> int:
    return int(images.load(directory / "pstree.img", "PSTREE")[0].pid)


def _change(directory: Path, name: str, kind: str, change: Callable[[list[Entry]], object]) -> None:
    path = directory / name.replace("PID", str(_pid(directory)))
    entries = images.load(path, kind)
    change(entries)
    images.store(path, kind, entries)


def test_an_own_dump_is_accepted_unchanged(dumped: Path, arrived: Path) -> None:
    threads = inspection.inspect(arrived, _pid(dumped))
    assert len(threads) == 3
    assert {path.name: path.read_bytes() for path in arrived.iterdir()} == {path.name: path.read_bytes() for path in dumped.iterdir()}


def test_a_second_process_is_refused(arrived: Path) -> None:
    """It would run as soon as it is restored: it would not be stopped, and no filter of ours would bind it."""
    pid = _pid(arrived)
    for kind in ("core", "mm", "pagemap", "ids", "fs"):
        shutil.copy(arrived / f"{kind}-{pid}.img", arrived / f"{kind}-4242.img")

    def add(entries: list[Entry]) -> None:
        entries.append(type(entries[0])(pid=4242, ppid=pid, pgid=pid, sid=pid, threads=[4242]))

    _change(arrived, "pstree.img", "PSTREE", add)
    with pytest.raises(FarhomeError, match="one process has one"):
        inspection.inspect(arrived, pid)


def test_a_second_process_beside_the_tree_is_refused(arrived: Path) -> None:
    pid = _pid(arrived)
    shutil.copy(arrived / f"core-{pid}.img", arrived / "core-4242.img")
    with pytest.raises(FarhomeError, match="hold core-4242"):
        inspection.inspect(arrived, pid)


@pytest.mark.parametrize(
    "name", ["fdinfo-2.img", "userns-9.img", "mountpoints-6.img", "timens-5.img", "cgroup.img", "rule-1.img", "x", "pages-7.img", "sub/x",
             "remap-fpath-1.img", "ghost-file-x.img", "inotify-file.img", "apparmor.img"],
)  # fmt: skip
def test_no_image_of_another_kind_is_taken(arrived: Path, name: str) -> None:
    (arrived / name).parent.mkdir(exist_ok=True)
    (arrived / name).write_bytes(b"x")
    with pytest.raises(FarhomeError):
        inspection.inspect(arrived, _pid(arrived))


def test_a_link_is_no_image(arrived: Path) -> None:
    (arrived / "parent").symlink_to("/")
    with pytest.raises(FarhomeError, match="no file"):
        inspection.inspect(arrived, _pid(arrived))


_FILLED = [
    ("pstree.img", "PSTREE"), ("inventory.img", "INVENTORY"), ("core-PID.img", "CORE"), ("mm-PID.img", "MM"), ("ids-PID.img", "IDS"),
    ("fs-PID.img", "FS"), ("files.img", "FILES"), ("pagemap-PID.img", "PAGEMAP"),
]  # fmt: skip


def _unlisted(entry: Entry, rules: inspection.Rules, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of fields that no rule names, in messages that are there."""
    for field in entry.DESCRIPTOR.fields:
        rule = rules.get(field.name)
        if rule is None:
            yield (*path, field.name)
        elif field.message_type is not None and not callable(rule):
            value = getattr(entry, field.name)
            part = (value[0] if len(value) else None) if hasattr(value, "extend") else (value if entry.HasField(field.name) else None)
            if part is not None:
                yield from _unlisted(part, rule, (*path, field.name))


def _fill(entry: Entry, path: tuple[str, ...]) -> None:
    """Sets a field to what is no default."""
    for name in path[:-1]:
        entry = getattr(entry, name)
        entry = entry[0] if hasattr(entry, "extend") else entry
    field = entry.DESCRIPTOR.fields_by_name[path[-1]]
    several = hasattr(getattr(entry, path[-1]), "extend")
    if field.message_type is not None:
        part = getattr(entry, path[-1]).add() if several else getattr(entry, path[-1])
        part.SetInParent()
        _complete(part)
    elif several:
        getattr(entry, path[-1]).append(_value(field))
    else:
        setattr(entry, path[-1], _value(field))


def _complete(entry: Entry) -> None:
    """Fills what a message must have."""
    for field in entry.DESCRIPTOR.fields:
        if field.is_required:
            if field.message_type is None:
                setattr(entry, field.name, _value(field))
            else:
                getattr(entry, field.name).SetInParent()
                _complete(getattr(entry, field.name))


def _value(field: Entry) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.cpp_type == field.CPPTYPE_STRING:
        return b"x" if field.type == field.TYPE_BYTES else "x"
    return True if field.cpp_type == field.CPPTYPE_BOOL else 1


@pytest.mark.parametrize(("name", "kind"), _FILLED)
def test_every_field_that_is_not_listed_is_refused(dumped: Path, tmp_path: Path, name: str, kind: str) -> None:
    pid = _pid(dumped)
    read = images.load(dumped / name.replace("PID", str(pid)), kind)
    paths = list(_unlisted(read[0], inspection.RULES[kind]))
    taken = []
    for number, path in enumerate(paths):
        copy = Path(shutil.copytree(dumped, tmp_path / str(number)))
        try:
            _change(copy, name, kind, lambda entries, path=path: _fill(entries[0], path))  # type: ignore[misc]
        except Exception as error:  # a required part of it cannot be made up: nothing is shown then
            raise AssertionError(f"{path}: {error}") from error
        try:
            inspection.inspect(copy, pid)
            taken.append(path)
        except FarhomeError as error:
            assert "\n" not in str(error)
        shutil.rmtree(copy)
    assert not taken
    assert paths or kind in ("PSTREE", "INVENTORY", "FS", "PAGEMAP", "IDS")


@pytest.mark.parametrize(("name", "kind"), _FILLED)
def test_an_unknown_field_is_refused(arrived: Path, name: str, kind: str) -> None:
    pid = _pid(arrived)
    path = arrived / name.replace("PID", str(pid))
    data = path.read_bytes()
    begin = len(images.store.__globals__["_header"](kind))
    size = int.from_bytes(data[begin : begin + 4], "little")
    unknown = b"\xf8\xff\x01\x01"  # field 4095
    path.write_bytes(
        data[:begin] + (size + len(unknown)).to_bytes(4, "little") + data[begin + 4 : begin + 4 + size] + unknown + data[begin + 4 + size :]
    )
    with pytest.raises(FarhomeError, match="do not know"):
        inspection.inspect(arrived, pid)


def _set(path: str, value: object) -> Callable[[list[Entry]], object]:
    def change(entries: list[Entry]) -> None:
        target: Entry = entries[0]
        *parts, last = path.split(".")
        for part in parts:
            target = getattr(target, part)
            target = target[0] if hasattr(target, "extend") else target
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    ("name", "kind", "change"),
    [
        ("core-PID.img", "CORE", _set("tc.task_state", 1)),
        ("core-PID.img", "CORE", _set("tc.timers.real.vsec", 1)),
        ("core-PID.img", "CORE", _set("tc.timers.prof.iusec", 1)),
        ("core-PID.img", "CORE", _set("thread_core.sched_policy", 1)),
        ("core-PID.img", "CORE", _set("thread_core.creds.secbits", 1)),
        ("core-PID.img", "CORE", _set("thread_core.creds.uid", 2**32 - 1)),
        ("core-PID.img", "CORE", _set("thread_info.gpregs.mode", 2)),
        ("core-PID.img", "CORE", lambda entries: entries[0].thread_info.fpregs.st_space.append(1)),
        ("core-PID.img", "CORE", lambda entries: entries[0].ClearField("tc")),
        ("core-PID.img", "CORE", lambda entries: entries.append(entries[0])),
        ("mm-PID.img", "MM", _set("vmas.status", 1 << 10)),
        ("mm-PID.img", "MM", _set("vmas.status", 1 << 8)),
        ("mm-PID.img", "MM", _set("vmas.fd", 3)),
        ("mm-PID.img", "MM", _set("vmas.flags", 1 << 4)),
        ("mm-PID.img", "MM", _set("vmas.start", 1)),
        ("mm-PID.img", "MM", lambda entries: [_set("vmas.flags", 1)(entries), _set("vmas.prot", 3)(entries)]),
        ("mm-PID.img", "MM", _set("dumpable", 2)),
        ("files.img", "FILES", _set("reg.name", "/proc/sys/kernel/core_pattern")),
        ("files.img", "FILES", _set("reg.name", "/usr/../proc/1/mem")),
        ("files.img", "FILES", _set("reg.name", "/dev/mem")),
        ("files.img", "FILES", _set("reg.name", "/.farhome/criu/x")),
        ("files.img", "FILES", _set("reg.name", "relative")),
        ("files.img", "FILES", _set("reg.flags", 0o1000)),
        ("files.img", "FILES", _set("reg.fown.pid", 1)),
        ("files.img", "FILES", _set("type", 2)),
        ("fs-PID.img", "FS", _set("root_id", 1)),
        ("pagemap-PID.img", "PAGEMAP", _set("pages_id", 9)),
        ("pagemap-PID.img", "PAGEMAP", lambda entries: entries.pop()),
        ("pagemap-PID.img", "PAGEMAP", lambda entries: _set("flags", 1)(entries[1:])),
        ("pstree.img", "PSTREE", _set("pgid", 1)),
        ("pstree.img", "PSTREE", _set("ppid", 1)),
        ("pstree.img", "PSTREE", lambda entries: entries[0].threads.append(4242)),
        ("pstree.img", "PSTREE", lambda entries: entries[0].threads.append(entries[0].pid)),
        ("inventory.img", "INVENTORY", _set("img_version", 9)),
    ],
)
def test_a_value_that_no_process_of_ours_has_is_refused(
    arrived: Path, name: str, kind: str, change: Callable[[list[Entry]], object]
) -> None:
    pid = _pid(arrived)
    _change(arrived, name, kind, change)
    with pytest.raises(FarhomeError) as refused:
        inspection.inspect(arrived, pid)
    assert "\n" not in str(refused.value)


_XSAVE = "thread_info.fpregs.xsave"
_LENGTHS = {"ymmh_space": 64, "bndreg_state": 8, "bndcsr_state": 2, "opmask_reg": 8, "zmm_upper": 64, "hi16_zmm": 128, "pkru": 2}
"""As CRIU writes them (criu/arch/x86/crtools.c, alloc_xsave_extends)."""


def _registers(entries: list[Entry]) -> Entry:
    """Returns the registers that processors differ in, as those of one with none of them beyond SSE."""
    xsave = entries[0].thread_info.fpregs.xsave
    xsave.Clear()
    xsave.xstate_bv = 3
    return xsave


def _with_component(name: str, bit: int) -> Callable[[list[Entry]], object]:
    def change(entries: list[Entry]) -> None:
        xsave = _registers(entries)
        getattr(xsave, name).extend(range(1, _LENGTHS[name] + 1))
        xsave.xstate_bv |= 1 << bit

    return change


def _with_cet(cet: int, ssp: int) -> Callable[[list[Entry]], object]:
    def change(entries: list[Entry]) -> None:
        shadow_stack = _registers(entries).cet
        shadow_stack.cet, shadow_stack.ssp = cet, ssp

    return change


def _with_used(bits: int) -> Callable[[list[Entry]], object]:
    return lambda entries: setattr(_registers(entries), "xstate_bv", bits)


def test_components_of_images_are_those_that_criu_writes() -> None:
    message = images.KINDS["CORE"].DESCRIPTOR
    for name in _XSAVE.split("."):
        message = message.fields_by_name[name].message_type
    assert {field.name for field in message.fields} - {"xstate_bv", "cet"} == {name for name, _, _ in registers.COMPONENTS} == set(_LENGTHS)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_registers, id="none"),
        pytest.param(_with_cet(0, 0), id="CET that nobody uses"),
        *(pytest.param(_with_component(name, bit), id=name) for name, bit, _ in registers.COMPONENTS),
    ],
)
def test_registers_of_every_processor_are_taken_as_they_are(arrived: Path, change: Callable[[list[Entry]], object]) -> None:
    pid = _pid(arrived)
    _change(arrived, "core-PID.img", "CORE", change)
    before = images.load(arrived / f"core-{pid}.img", "CORE")[0].thread_info.fpregs
    inspection.inspect(arrived, pid)
    assert images.load(arrived / f"core-{pid}.img", "CORE")[0].thread_info.fpregs == before


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(_with_cet(*values), id=f"CET {values}") for values in ((1, 0), (0, 4096), (2, 0), (3, 4096))),
        *(pytest.param(_with_used(3 | 1 << bit), id=f"component {bit}") for bit in (8, 10, 11, 12, 14, 17, 18, 19, 62, 63)),
        *(
            pytest.param(lambda entries, name=name: getattr(_registers(entries), name).extend([1] * 129), id=f"too long: {name}")
            for name in _LENGTHS
        ),
    ],
)
def test_registers_that_images_cannot_hold_are_refused(arrived: Path, change: Callable[[list[Entry]], object]) -> None:
    _change(arrived, "core-PID.img", "CORE", change)
    with pytest.raises(FarhomeError) as refused:
        inspection.inspect(arrived, _pid(arrived))
    assert "xsave" in str(refused.value)


def test_registers_in_use_that_images_do_not_hold_are_found() -> None:
    """APX, whose registers CRIU leaves out without a word, AMX, and what no processor has yet."""
    area = bytearray(2440)
    area[512:520] = registers.HELD.to_bytes(8, "little")
    assert registers.not_held(bytes(area)) == 0
    assert registers.not_held(bytes(512)) == 0
    for bit in (11, 17, 18, 19, 62):
        area[512:520] = (3 | 1 << bit).to_bytes(8, "little")
        assert registers.not_held(bytes(area)) == 1 << bit


def test_rights_that_it_asks_for_are_not_given(arrived: Path) -> None:
    pid = _pid(arrived)
    _change(arrived, "core-PID.img", "CORE", lambda entries: entries[0].thread_core.creds.cap_prm.__setitem__(0, 0xFFFFFFFF))
    _change(arrived, "core-PID.img", "CORE", _set("thread_core.sched_nice", -20))
    _change(arrived, "ids-PID.img", "IDS", _set("user_ns_id", 99))
    inspection.inspect(arrived, pid)
    core = images.load(arrived / f"core-{pid}.img", "CORE")[0].thread_core
    assert list(core.creds.cap_prm) == [1 << images.CAP_SYS_ADMIN, 0] and core.sched_nice == 0
    root = images.load(arrived / "inventory.img", "INVENTORY")[0].root_ids
    assert images.load(arrived / f"ids-{pid}.img", "IDS")[0].user_ns_id == root.user_ns_id


def test_another_process_than_the_one_that_was_announced_is_refused(arrived: Path) -> None:
    with pytest.raises(FarhomeError, match="hold process"):
        inspection.inspect(arrived, 1)
