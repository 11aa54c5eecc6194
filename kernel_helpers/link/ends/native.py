"""The functions of session/, away/ and home/, as Python calls them."""

from __future__ import annotations

import ctypes
import functools
import os

from kernel_helpers.common import library


@functools.cache
def native() -> ctypes.CDLL:
    """The functions of session/, away/ and home/, declared. CDLL lets go of the interpreter while they run."""
    pointer, i, unsigned, u64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64
    return library.functions(
        ("session_attach", i, [pointer, pointer]),
        ("session_branch", pointer, [pointer, ctypes.c_uint32]),
        ("stream_close", None, [pointer]),
        ("session_detach", None, [pointer]),
        ("session_release", None, [pointer]),
        ("session_hold", None, [pointer]),
        ("session_set_silence", None, [pointer, i]),
        ("session_flush", i, [pointer, i]),
        ("session_next_event", i, [pointer, pointer, pointer, ctypes.c_uint32]),
        ("session_control", i, [pointer, ctypes.c_uint16, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32]),
        ("session_statistic", u64, [pointer, i]),
        ("away_new", pointer, [i, pointer, pointer, unsigned, i]),
        ("away_session", pointer, [pointer]),
        ("away_sibling", pointer, [pointer, i, i, i]),
        ("away_heir", pointer, [pointer, i, i, i]),
        ("away_pause", None, [pointer]),
        ("away_unpause", None, [pointer]),
        ("away_parked", unsigned, [pointer, pointer, unsigned]),
        ("away_add_thread", i, [pointer, i, i]),
        ("away_remove_thread", None, [pointer, i]),
        ("away_forward", i, [pointer, i, i, pointer, ctypes.c_char_p]),
        ("away_answer", i, [pointer, i, ctypes.c_int64, i]),
        ("away_abandon", i, [pointer, i]),
        ("away_expect_part", None, [pointer, i, ctypes.c_int64, ctypes.c_int64]),
        ("away_part", ctypes.c_int64, [pointer, i, pointer]),
        ("away_give_descriptor", i, [pointer, i, i, i]),
        ("away_free", None, [pointer]),
        ("away_set_account", None, [pointer, pointer]),
        ("away_watch", None, [pointer, u64]),
        ("away_remembered", None, [pointer, pointer]),
        ("away_keep_files", None, [pointer, pointer]),
        ("away_has_keys", None, [pointer]),
        ("kept_files_new", pointer, []),
        ("kept_files_release", None, [pointer]),
        ("kept_files_put", None, [pointer, u64, i, u64]),
        ("away_let_map", None, [pointer, i, u64]),
        ("home_keep", i, [pointer, i, u64]),
        ("away_set_direct", None, [pointer, pointer]),
        ("away_make_direct", i, [pointer, i, i, ctypes.c_uint32, ctypes.c_int64]),
        ("away_direct_left", None, [pointer, i]),
        ("away_direct_awaited", unsigned, [pointer, pointer, unsigned]),
        ("home_new", pointer, [pointer, unsigned, i, i, i]),
        ("home_session", pointer, [pointer]),
        ("home_inherit", None, [pointer, pointer]),
        ("home_set_stub", None, [pointer, i, u64, ctypes.c_uint32]),
        ("home_expect", i, [pointer, i, i, pointer, unsigned, ctypes.c_int64]),
        ("home_resumable", i, [pointer, i]),
        ("home_deadline", ctypes.c_int64, [pointer, i, i]),
        ("home_keep_time", None, [pointer]),
        ("home_milliseconds_left", ctypes.c_int64, [pointer, i, i]),
        ("home_again", i, [pointer, i, pointer]),
        ("home_signallers", unsigned, [pointer, pointer, unsigned]),
        ("home_signals_arrived", None, [pointer, i]),
        ("home_put_value", i, [pointer, i, ctypes.c_int64]),
        ("home_hold_places", unsigned, [pointer, i, pointer, unsigned]),
        ("home_slot_offset", u64, [unsigned]),
        ("home_add_thread", i, [pointer]),
        ("home_name_thread", None, [pointer, unsigned, i]),
        ("home_size", u64, [pointer]),
        ("home_renew", i, [pointer]),
        ("home_standing", i, [pointer, i, pointer]),
        ("home_busy", unsigned, [pointer, pointer, unsigned]),
        ("home_block", i, [pointer, i, ctypes.c_uint64]),
        ("home_written", u64, [pointer, i, ctypes.c_uint64]),
        ("home_suspend", i, [pointer, i, ctypes.c_int64]),
        ("home_expect_rest", i, [pointer, i, i, pointer, ctypes.c_uint64]),
        ("home_rest", u64, [pointer, i, pointer]),
        ("home_with_rests", unsigned, [pointer, pointer, unsigned]),
        ("home_suspended", unsigned, [pointer, pointer, unsigned]),
        ("home_statistic", u64, [pointer, i]),
        ("home_free", None, [pointer]),
        ("home_carry_not", None, [pointer]),
        ("home_remember_not", None, [pointer]),
        ("home_ahead_not", None, [pointer]),
        ("home_has_written", i, [pointer]),
        ("home_map_aside", None, [pointer, u64]),
        ("home_take_asides", unsigned, [pointer, pointer, unsigned, pointer]),
        ("home_know_file", i, [pointer, i, u64]),
        ("aside_forget", None, [u64]),
        ("home_take_effect", i, [pointer, i, pointer]),
    )


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result
