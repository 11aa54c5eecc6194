"""Input of a user at an interactive shell and python3, and the output that must come back."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.moves.outcome import PATH, Place
from tests.moves.terminal import Terminal

SHELL = ["bash", "--norc", "--noprofile", "-i"]
PROMPT, PYTHON = r"shell\$ $", r">>> $"
EVENTS = """\
import os, signal, sys, termios, time
def winch(*_): os.write(1, b"size %d %d\\n" % os.get_terminal_size())

signal.signal(signal.SIGWINCH, winch) and None
def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: pass

def interrupted(work):
    try: print("computing"); work()
    except KeyboardInterrupt: print("interrupted")

def sleep():
    while True: time.sleep(2)

"""
"""CPython misses a Ctrl-C that comes just before its sleep begins, also natively: hence the loop."""


SIGNAL_ECHO = re.compile(rb"\^[CZ\\]")
"""A terminal sends the signal of a key first and shows the key then: bash, woken by its stopped job, may have turned the echo off between
the two, and a program that catches the signal may have written before. Natively, too."""


def shell(place: Place, launcher: str, user: str) -> Terminal:
    """Returns a terminal with an interactive bash on it, in which $RUN is the launcher."""
    variables = [f"PATH={PATH}", "HOME=/tmp", "TERM=dumb", "LC_ALL=C.UTF-8", "PS1=shell$ ", f"RUN={launcher}", "HISTFILE="]
    return Terminal(place, ["env", "-i", *variables, *SHELL], user)


def python_session(place: Place, launcher: str, user: str, between: Callable[[], None] = lambda: None) -> tuple[bytes, int]:
    """A session with python3: echo, editing, Ctrl-C in a sleep and in a loop, Ctrl-Z and fg, the window's size, no echo, end of file.

    `between` is called before each line that is typed (a test moves the process there). Returns what the terminal showed, but for
    SIGNAL_ECHO, and the exit status of the shell. Nothing is typed before what it answers to was shown, so the transcript is the same in
    every native run.
    """
    with shell(place, launcher, user) as terminal:

        def say(line: str, answer: str) -> None:
            between()
            terminal.enter(line)
            terminal.expect(answer)

        terminal.expect(PROMPT)
        say("echo before\n", PROMPT)
        say("$RUN python3 -q\n", PYTHON)
        for line in EVENTS.splitlines():
            say(line + "\n", r"(>>>|\.\.\.) $")
        say("1 + 1\n", "2\r\n>>> $")
        say("print('edi\x7fited'.upper())\n", PYTHON)
        # Caught, for a traceback shows how far the line had come, which is another matter each time.
        say("interrupted(sleep)\n", "\ncomputing\r\n")
        say("\x03", "interrupted\r\n>>> $")
        say("interrupted(lambda: busy(100))\n", "\ncomputing\r\n")
        say("\x03", "interrupted\r\n>>> $")
        # No Ctrl-C at the prompt itself: CPython misses one that comes between its prompt and its select(), also natively.
        say("print('stopping'); time.sleep(0.5); busy(0.5); print('went on')\n", "\nstopping\r\n")
        say("\x1a", PROMPT)
        say("jobs\n", PROMPT)
        say("fg\n", "went on\r\n>>> $")
        say("print('in a loop'); busy(2); print('done')\n", "\nin a loop\r\n")
        say("\x1a", PROMPT)
        say("bg\n", PROMPT)
        say("fg\n", "done\r\n>>> $")
        say("os.get_terminal_size()\n", PYTHON)
        say("print('resize'); time.sleep(1)\n", "\nresize\r\n")
        between()
        terminal.resize(50, 132)
        terminal.expect(r"size 132 50\r\n>>> $")
        say("name = input('name? ')\n", r"name\? $")
        say("Ada\n", PYTHON)
        say("name, os.isatty(0), os.ttyname(0) == os.ttyname(1)\n", PYTHON)
        say("import getpass; len(getpass.getpass())\n", "Password: $")
        say("secret\n", PYTHON)
        say("print('reading'); sys.stdin.readlines()\n", "\nreading\r\n")
        say("one\n", "one\r\n")
        say("two\n", "two\r\n")
        say("\x04", PYTHON)
        say("\x04", PROMPT)
        say("echo status $?\n", PROMPT)
        say("$RUN python3 -c 'import time; print(\"abort me\"); time.sleep(100)'\n", "\nabort me\r\n")
        say("\x1c", PROMPT)
        say("exit 7\n", "exit\r\n")
        status = terminal.end()
        return SIGNAL_ECHO.sub(b"", terminal.transcript), status
