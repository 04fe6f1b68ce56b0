"""The messages of a stream of followers: how long an end waits for one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from headrace.wire.frames import Kind, MethodCode, frame_head
from headrace_broker.runtime import replica_messages
from headrace_broker.runtime.replica_messages import receive
from headrace_server.native.streams import WAKING_BYTES, MessageStream

from tests.unit.common.test_native_streams import leading

SILENCE = 0.2
PIECE = b"x" * (WAKING_BYTES // 8)
"""Less than what a stream wakes for."""
HEAD = frame_head(Kind.MESSAGE, b"slow", method=MethodCode.REPLICA_FETCH, correlation=1, attached=16 * len(PIECE))


@contextlib.asynccontextmanager
async def sending(*parts: bytes) -> AsyncIterator[MessageStream]:
    """A follower's stream on which these parts arrive, the next one when the one before was taken in."""
    async with leading() as leader:
        follower, served = await leader.connected()
        heard, take = asyncio.Event(), follower.buffer_updated

        def note(nbytes: int) -> None:
            take(nbytes)
            heard.set()

        follower.buffer_updated = note

        async def send() -> None:
            for part in parts:
                heard.clear()
                served._transport.write(part)
                await heard.wait()

        task = asyncio.create_task(send())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.wait([task])
            follower.abort()


async def test_a_message_that_keeps_arriving_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the network: a follower that gave up would begin with the same message, and get no further."""
    monkeypatch.setattr(replica_messages, "SILENCE_SECONDS", SILENCE)
    async with asyncio.timeout(60), sending(HEAD, *[PIECE] * 16) as follower:
        begun = time.monotonic()
        received = await receive(follower)
        assert received is not None
        assert (received.message, len(received.attachments)) == (b"slow", 16 * len(PIECE))
        assert time.monotonic() - begun > 2 * SILENCE


async def test_a_stream_that_stops_within_a_message_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on which nothing comes at all."""
    monkeypatch.setattr(replica_messages, "SILENCE_SECONDS", SILENCE)
    for parts in ([], [HEAD], [HEAD, PIECE]):
        async with asyncio.timeout(60), sending(*parts) as follower:
            with pytest.raises(TimeoutError):
                await receive(follower)


async def test_a_message_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that sends a byte now and then would hold a follower for ever."""
    monkeypatch.setattr(replica_messages, "SILENCE_SECONDS", SILENCE)
    monkeypatch.setattr(replica_messages, "FRAME_SECONDS", SILENCE)
    async with asyncio.timeout(60), sending(HEAD, *[PIECE] * 16) as follower:
        with pytest.raises(TimeoutError):
            await receive(follower)
