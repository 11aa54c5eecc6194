"""mfs-server and mfs-client as mosd runs them: they end when mosd does, since their standard input is a pipe from it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.common.library import build_directory

READY_TIMEOUT = 10.0
END_TIMEOUT = 2.0
"""Seconds that a program has to be ready, and to end."""

log = logging.getLogger("mosd.mfs")


class HelperFailed(FarhomeError):
    """A program of the file tree does not start; the message is its own."""

    exit_code = 71


class Helper:
    """One of them, running."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self._watching = asyncio.get_running_loop().create_task(self._report_complaints())

    @classmethod
    async def start(cls, program: str, name: str, arguments: Sequence[str | Path]) -> Helper:
        """Starts it and waits until it is ready. Errors: HelperFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                build_directory() / program, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                start_new_session=True, env={},
            )  # fmt: skip
        except OSError as error:
            raise HelperFailed(f"{program}: {error.strerror}") from None
        helper = cls(name, process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT):
                said = await process.stdout.readline()
        except TimeoutError:
            helper.kill()
            raise HelperFailed(f"{name} was not ready within {READY_TIMEOUT:.0f} s") from None
        except asyncio.CancelledError:
            helper.kill()
            raise
        if said != b"ready\n":
            helper.kill()
            await process.wait()
            raise HelperFailed(f"{name} does not start")
        return helper

    async def _report_complaints(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            log.warning("%s", line.decode(errors="replace").rstrip())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has, and has been waited for."""
        return self._process.returncode is not None

    @property
    def runs(self) -> bool:
        """Whether it serves. One that was killed does not, though a thread of it may not end before what it serves is unmounted."""
        return not self.has_ended and not self._is_killed()

    def _is_killed(self) -> bool:
        try:
            return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True  # it has ended, and is waited for just now

    async def ended(self) -> None:
        """Waits until it has."""
        await self._process.wait()

    def hang_up(self) -> None:
        """Ask it to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def end(self) -> bool:
        """Ends it: in a moment by itself, else by force; False if not even that helped at once."""
        self.hang_up()
        for force in (False, True):
            if force:
                self.kill()
            try:
                async with asyncio.timeout(END_TIMEOUT):
                    await self._process.wait()
                return True
            except TimeoutError:
                log.warning("%s does not end%s", self.name, " when it is killed" if force else "")
        return False

    def kill(self) -> None:
        """SIGKILL."""
        if self.runs:
            self._process.kill()
