"""CRIU images as data: what has to be changed in them so that a copy becomes the process itself on another node."""

from __future__ import annotations

import mmap
import resource
import sys
from pathlib import Path
from typing import Any

from kernel_helpers.errors import FarhomeError
from kernel_helpers.library import build_directory

try:
    import pycriu.images as criu_images
except ImportError:
    sys.path.append(str(build_directory() / "pycriu"))
    import pycriu.images as criu_images

CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24
# Files of a process or thread, named after it. Others end in a number too, which counts something else.
_BY_ID = ("core", "mm", "pagemap", "ids", "fs", "creds", "rule", "timerfd")
_RLIMITS_OF_MEMORY = (resource.RLIMIT_STACK, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_MEMLOCK)

Image = dict[str, Any]


def load(path: Path) -> Image:
    """Errors: FarhomeError when it is not an image."""
    try:
        with path.open("rb") as file:
            image: Image = criu_images.load(file)
        return image
    except (OSError, criu_images.MagicException, KeyError, ValueError, IndexError) as error:
        raise FarhomeError(f"{path.name} is no image of a process: {error}") from error


def store(path: Path, image: Image) -> None:
    with path.open("wb") as file:
        criu_images.dump(image, file)


def thread_ids(directory: Path) -> list[int]:
    """Process and thread ids that a restore will ask for. Errors: FarhomeError."""
    return [tid for entry in load(directory / "pstree.img")["entries"] for tid in (entry["pid"], *entry["threads"])]


def renumber(directory: Path, pid: tuple[int, int], tids: dict[int, int]) -> None:
    """Gives the one process in the images and its threads other ids. `pid`: (as dumped, wanted); `tids` likewise, the
    main thread included. It leads a session of its own, so session and group are its own id."""
    dumped, wanted = pid
    tree = load(directory / "pstree.img")
    if len(tree["entries"]) != 1 or tree["entries"][0]["pid"] != dumped:
        raise FarhomeError("the images hold another process than the one that was to move")
    entry = tree["entries"][0]
    entry["pid"] = entry["pgid"] = entry["sid"] = wanted
    entry["ppid"] = 0
    entry["threads"] = [tids[tid] for tid in entry["threads"]]
    store(directory / "pstree.img", tree)
    changed = []
    for path in directory.glob("*.img"):
        name, _, number = path.stem.rpartition("-")
        if name in _BY_ID and number.isdigit() and int(number) in tids:
            # An old and a new id may be the same number: first all away from their names, then to the new ones.
            moved = path.rename(directory / f"{name}-{tids[int(number)]}.renumbered")
            changed.append(moved)
    for path in changed:
        path.rename(path.with_suffix(".img"))


def strip(directory: Path) -> None:
    """Takes out what belongs to the node (or the home) that was left: seccomp filters, no_new_privs, security label,
    login id, out-of-memory score, parent-death signal, modes of files and of their opening.

    The process's capabilities are replaced by CAP_SYS_ADMIN alone, with which it can be given its seccomp filter without
    no_new_privs; the arrival takes that one away before the guest's first instruction.
    """
    for path in directory.glob("core-*.img"):
        image = load(path)
        for entry in image["entries"]:
            _strip_core(entry)
        store(path, image)
    # CRIU would give the process a time namespace in which its clocks go on where they stood at the dump. They must be those of
    # its home, where its absolute time-outs are kept.
    for path in directory.glob("timens-*.img"):
        path.unlink()
    seccomp = directory / "seccomp.img"
    if seccomp.exists():
        store(seccomp, {"magic": "SECCOMP", "entries": [{}]})
    for path in directory.glob("mm-*.img"):
        image = load(path)
        for entry in image["entries"]:
            for mapping in entry["vmas"]:
                if mapping["flags"] & mmap.MAP_PRIVATE:
                    # How the program had opened the file; a file from the cache can only be read, and that is all it takes.
                    mapping.pop("fdflags", None)
        store(path, image)
    files = directory / "files.img"
    if files.exists():
        image = load(files)
        for entry in image["entries"]:
            # Content is what counts, and was compared; a file from the cache has another mode.
            entry.get("reg", {}).pop("mode", None)
        store(files, image)


def _strip_core(entry: Image) -> None:
    thread = entry["thread_core"]
    for key in ("seccomp_mode", "seccomp_filter", "pdeath_sig"):
        thread.pop(key, None)
    credentials = thread.get("creds")
    if credentials is not None:
        credentials["no_new_privs"] = 0
        for key in ("lsm_profile", "lsm_sockcreate", "apparmor_data"):
            credentials.pop(key, None)
        only = [0] * len(credentials["cap_eff"])
        credentials["cap_inh"] = list(only)
        if "cap_amb" in credentials:
            credentials["cap_amb"] = list(only)
        only[CAP_SYS_ADMIN // 32] = 1 << CAP_SYS_ADMIN % 32
        credentials["cap_eff"] = list(only)
        credentials["cap_prm"] = list(only)
    process = entry.get("tc")
    if process is not None:
        for key in ("seccomp_mode", "seccomp_filter", "old_seccomp_mode", "old_seccomp_filter", "loginuid", "oom_score_adj"):
            process.pop(key, None)


def fit_limits(directory: Path, pid: int) -> None:
    """Makes the resource limits such that this node can set them: those on memory as near to the home's as we may,
    the others as wide as ours (the home enforces them, on the calls that it makes)."""
    may_raise = has_capability(CAP_SYS_RESOURCE)
    path = directory / f"core-{pid}.img"
    image = load(path)
    for entry in image["entries"]:
        limits = entry.get("tc", {}).get("rlimits", {}).get("rlimits", [])
        for number, limit in enumerate(limits):
            ours = resource.getrlimit(number)[1] if number < resource.RLIMIT_RTPRIO + 2 else resource.RLIM_INFINITY
            ceiling = (1 << 64) - 1 if ours == resource.RLIM_INFINITY or may_raise else ours
            if number in _RLIMITS_OF_MEMORY:
                limit["max"] = min(limit["max"], ceiling)
                limit["cur"] = min(limit["cur"], ceiling)
            else:
                limit["max"] = limit["cur"] = ceiling if number != resource.RLIMIT_NOFILE else min(limit["max"], ceiling)
    store(path, image)


def has_capability(number: int) -> bool:
    """Whether this process has it in effect."""
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False
