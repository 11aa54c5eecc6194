"""Builds the helpers with sanitizers, into a directory of their own (.build/asan,ubsan, .build/tsan), with a Python that can load them.

That Python is the one of the clone, started by the dynamic linker with the sanitizer's library before all others. It is not named in the
environment (LD_PRELOAD): what Python starts, guests above all, would have it as well, and terabytes of its shadow memory would move.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {"asan": "libasan.so", "ubsan": "libubsan.so", "tsan": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=0",  # Python leaves memory to its end; tests send SIGSEGV
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "die_after_fork=0:report_signal_unsafe=0:handle_segv=0",
}
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_PYTHON = """#!/bin/sh
{options}
export PYTHONMALLOC=malloc
exec {loader} --argv0 "$0" --preload {libraries} {python} "$@"
"""


def build(kinds: str) -> Path:
    """Builds with the sanitizers `kinds`, as the Makefile has them, and returns the directory. Errors: CalledProcessError."""
    target = ROOT / ".build" / kinds
    (target / "reports").mkdir(parents=True, exist_ok=True)
    (target / "reports").chmod(0o1777)
    inside = Path("/opt/farhome") / target.relative_to(ROOT)
    write(target / "options.c", "".join(map(_as_c, options(inside).items())) + _BESIDE[kinds].format(reports=inside / "reports"))
    command = ["make", "-s", "-j2", "-C", ROOT / "kernel_helpers", f"SAN={kinds}", f"BUILD={target}", f"MORE={target}/options.c"]
    subprocess.run(command, check=True, timeout=900)
    # enter and sandbox as they are: in a child that is in another pid namespace AddressSanitizer waits for itself.
    for name in ("criu", "pycriu", "enter", "sandbox"):
        link(target / name, ROOT / ".build" / name)
    environment = target / "python"
    (environment / "bin").mkdir(parents=True, exist_ok=True)
    for packages in (ROOT / ".venv" / "lib").glob("python3*/site-packages"):
        own = environment / "lib" / packages.parent.name / "site-packages"
        own.mkdir(parents=True, exist_ok=True)
        (own / "farhome.pth").write_text(f"{packages}\n{ROOT}\n{ROOT}/.build/pycriu\n")
    (environment / "pyvenv.cfg").write_text((ROOT / ".venv" / "pyvenv.cfg").read_text())
    script = _PYTHON.format(
        options="\n".join(f'export {name}="{value}"' for name, value in options(target).items()), loader=_LOADER,
        libraries=":".join(library(kind) for kind in kinds.split(",")), python=os.path.realpath(ROOT / ".venv" / "bin" / "python"),
    )  # fmt: skip
    (environment / "bin" / "python").write_text(script)
    (environment / "bin" / "python").chmod(0o755)
    return target


def options(target: Path) -> dict[str, str]:
    """Returns the environment variables for the sanitizers: where their reports go, among others."""
    return {name: f"{value}:log_path='{target}/reports/{name[:4].lower()}'" for name, value in OPTIONS.items()}


_REPORTED = """
#include <fcntl.h>
#include <unistd.h>
/* UndefinedBehaviorSanitizer beside AddressSanitizer writes to standard error regardless of its options. */
void __ubsan_on_report(void);
void __ubsan_on_report(void) {{ close(open("{reports}/ubsan", O_CREAT | O_WRONLY, 0644)); }}
"""

_LOCKED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sanitizer/tsan_interface.h>
/* Most ThreadSanitizers do not know this call, and would take its locks for unlocked: this reports them. */
int __interceptor_pthread_mutex_clocklock(pthread_mutex_t *, clockid_t, const struct timespec *) __attribute__((weak));
int pthread_mutex_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *end)
{{
    int (*real)(pthread_mutex_t *, clockid_t, const struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_clocklock");
    if (__interceptor_pthread_mutex_clocklock)
        return real(lock, clock, end);
    __tsan_mutex_pre_lock(lock, __tsan_mutex_try_lock);
    int result = real(lock, clock, end);
    __tsan_mutex_post_lock(lock, __tsan_mutex_try_lock | (result ? __tsan_mutex_try_lock_failed : 0), 0);
    return result;
}}
"""
_BESIDE = {"asan,ubsan": _REPORTED, "tsan": _LOCKED}


def _as_c(option: tuple[str, str]) -> str:
    """The same, in a program that mosd starts without an environment."""
    name, value = f"__{option[0].lower().replace('_', '_default_')}", option[1]
    return f'const char *{name}(void);\nconst char *{name}(void) {{ return "{value}"; }}\n'


def write(path: Path, text: str) -> None:
    """Writes what is not there as it is: what has not changed is not built anew."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def library(kind: str) -> str:
    """The library that has to be there before all others. Errors: CalledProcessError."""
    command = ["gcc", f"-print-file-name={LIBRARIES[kind]}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def link(path: Path, target: Path) -> None:
    """Makes or renews a symbolic link."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


if __name__ == "__main__":
    print(build(sys.argv[1]))
