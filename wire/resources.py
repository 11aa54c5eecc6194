"""What a program of ours asks of its kernel for itself, before anything else."""

from __future__ import annotations

import ctypes
import resource

_PR_SET_MEMORY_MERGE = 67


def allow_many_descriptors() -> None:
    """As many as this process may have: each process of a tree takes half a dozen."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def let_memory_be_merged() -> None:
    """Where the owner lets the kernel merge pages that are the same (KSM). Of deputies and remotes two thirds of the pages that they do not
    share become so. Before Linux 6.4 there is no such thing. What we start inherits it; guests do not
    (kernel_helpers/namespaces/sandbox/main.c)."""
    ctypes.CDLL(None).prctl(_PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
