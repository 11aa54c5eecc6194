"""What a deputy says is dealt with in the order in which it said it, even if all of it comes at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.programs import Program, ProgramError
from node.streams import BUFFER, read_message
from wire.frames import Message, encode


async def test_answers_events_and_the_end_come_in_order(tmp_path: Path) -> None:
    """A process that goes out and at once makes a call that takes it home: that it is at home must be the last word."""
    heard: list[str] = []

    async def deputy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = await read_message(reader)
        assert message is not None
        burst = [{"id": message["id"], "ok": True, "where": "n2"}, {"event": "state", "where": "n2"}, {"event": "state", "where": "home"}]
        writer.write(b"".join(encode(one) for one in burst))
        writer.close()

    def event(message: Message) -> None:
        heard.append(f"event {message['where']}")

    server = await asyncio.start_unix_server(deputy, tmp_path / "socket", limit=BUFFER)
    async with server:
        program = await Program.attach(tmp_path / "socket", "deputy of 7", event, lambda: heard.append("gone"))

        async def move() -> None:
            heard.append(f"answer {(await program.request('move'))['where']}")

        await asyncio.wait_for(move(), 5)
        assert await program.wait_gone(5)
        assert heard == ["answer n2", "event n2", "event home", "gone"]
        with pytest.raises(ProgramError):
            await program.request("status")
