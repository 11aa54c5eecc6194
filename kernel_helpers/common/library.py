"""Finds and loads the shared library that kernel_helpers/Makefile builds."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import FarhomeError


def build_directory() -> Path:
    """Return the directory of built helpers: FARHOME_BUILD, else .build beside the packages."""
    override = os.environ.get("FARHOME_BUILD")
    return Path(override) if override else Path(__file__).resolve().parents[2] / ".build"


@functools.cache
def resident() -> bytes:
    """The code of the resident loop. Errors: OSError."""
    return (build_directory() / "resident.bin").read_bytes()


@functools.cache
def load() -> ctypes.CDLL:
    """libfarhome.so, errno kept by ctypes. Errors: FarhomeError when it is not built."""
    path = build_directory() / "libfarhome.so"
    try:
        return ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        raise FarhomeError(f"{path} cannot be loaded ({error}); run: make -C kernel_helpers") from error


def functions(*declared: tuple[str, Any, list[Any]]) -> ctypes.CDLL:
    """Return the same, with the types of the functions that the caller uses: name, result, arguments. Errors: as load()."""
    native = load()
    for name, result, arguments in declared:
        function = getattr(native, name)
        function.restype, function.argtypes = result, arguments
    return native
