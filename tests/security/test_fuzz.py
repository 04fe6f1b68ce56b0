"""Every method of every listener takes whatever is sent to it: no INTERNAL, no UNKNOWN, no crash, no record lost.

`make security` sends as many calls as FUZZ_CALLS says, `make test` some thousands. FUZZ_SEED draws others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest
from headrace.v1.errors_pb2 import ErrorCode, ErrorDetail
from headrace.wire.errors import STATUS_DETAILS_KEY
from headrace.wire.frames import LEADER_KINDS, SERVER_KINDS, FrameReader, Kind
from headrace_server.wasted_calls import CALLS_AT_ONCE

from tests.security.conftest import Witness
from tests.security.fuzzing import Fuzz, methods

CALLS = int(os.environ.get("FUZZ_CALLS", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
AT_ONCE = 16
CALL_SECONDS = 0.5
QUIET_SECONDS = 0.3
FORBIDDEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
BROKER, CLUSTER, GROUP, PROCESS = (f"headrace.v1.{name}Service" for name in ("Broker", "Cluster", "Group", "Process"))
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
STREAMS = set(methods(REFLECTION))


async def send(channel: grpc.aio.Channel, path: str, data: bytes) -> grpc.StatusCode:
    """Make one call, read all of its answers, and return how it ended.

    Without an error of its own a server answers UNAVAILABLE only where it is gone. That a stream could not be written
    because the server had ended it is what gRPC's client calls an internal error of itself.
    """
    try:
        if path in STREAMS:
            async for _ in channel.stream_stream(path)(iter([data]), timeout=CALL_SECONDS):
                pass
        else:
            async for _ in channel.unary_stream(path)(data, timeout=CALL_SECONDS):
                pass
    except grpc.aio.AioRpcError as error:
        failed = error
    else:
        return grpc.StatusCode.OK
    is_typed = any(key == STATUS_DETAILS_KEY for key, _ in failed.trailing_metadata() or ())
    is_mine = path in STREAMS and failed.details() == "Internal error from Core"
    assert failed.code() not in FORBIDDEN or is_mine, (path, failed.code(), failed.details(), data[:200])
    assert failed.code() is not grpc.StatusCode.UNAVAILABLE or is_typed, (path, failed.details(), data[:200])
    return failed.code()


async def fuzz(address: str, services: list[str], calls: int, seed: int) -> Counter[tuple[str, str]]:
    """Send calls, and count how they ended by method and status.

    A method that refuses a call for its rate gets no more for a second: a caller that ignores rates is shut out.
    """
    paths = [path for service in services for path in methods(service)]
    drawn, seen = Fuzz(seed), Counter[tuple[str, str]]()
    paused = dict.fromkeys(paths, 0.0)
    left = calls

    async def work() -> None:
        nonlocal left
        while left > 0:
            path, data = drawn.call(paths)
            if time.monotonic() < paused[path]:
                continue
            left -= 1
            code = await send(channel, path, data)
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                paused[path] = time.monotonic() + 1.0
            seen[path, code.name] += 1

    async with grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(work())
    return seen


async def pour(address: str, contents: list[bytes]) -> None:
    """Send each at a connection of its own, and read until the server has had enough or has nothing more to say."""
    host, _, port = address.rpartition(":")
    for content in contents:
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(content)
            writer.write_eof()
            await asyncio.wait_for(reader.read(1 << 16), 2)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("listener", "services"),
    [
        ("client", [BROKER, PROCESS, HEALTH, REFLECTION]),
        ("internal", [BROKER]),
        ("coordinator", [CLUSTER, GROUP, PROCESS, HEALTH]),
    ],
)
def test_whatever_is_called_has_a_proper_answer(witness: Witness, listener: str, services: list[str]) -> None:
    """Fuzzed calls are answered or refused with a status that says whose mistake it is."""
    processes = witness.processes()
    # A stranger's calls are refused by the internal listener before they are read. More of them at once are wasted
    # calls, whose connections it ends (`wasted_calls`).
    calls = min(CALLS // 3, CALLS_AT_ONCE) if listener == "internal" else CALLS // 3
    seen = asyncio.run(fuzz(witness.address(listener), services, calls, SEED))
    assert {path for path, _ in seen} == {path for service in services for path in methods(service)}
    assert any(code == ("PERMISSION_DENIED" if listener == "internal" else "INVALID_ARGUMENT") for _, code in seen)
    assert witness.processes() == processes
    witness.work()


async def converse(address: str, contents: Iterator[bytes]) -> Counter[tuple[str, str]]:
    """Send each at a native connection of its own, some at once; count the frames that answer, by kind and error code.

    A connection is over when its server ends it, or says nothing for a while.
    """
    host, _, port = address.rpartition(":")
    seen = Counter[tuple[str, str]]()

    async def work() -> None:
        for content in contents:
            frames = FrameReader(SERVER_KINDS | LEADER_KINDS, lambda _: True)
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(OSError, TimeoutError):
                writer.write(content)
                while data := await asyncio.wait_for(reader.read(8 << 10), QUIET_SECONDS):
                    frames.buffer()[: len(data)] = data
                    frames.received(len(data))
                    while (frame := frames.next_frame()) is not None:
                        kind, code = Kind(frame.header.kind), ""
                        if kind is Kind.ERROR:
                            detail = ErrorDetail.FromString(frame.message)
                            code = ErrorCode.Name(detail.code)
                            assert code != "ERROR_CODE_INTERNAL", (detail, content[:200])
                        seen[kind.name, code] += 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work())
    return seen


@pytest.mark.parametrize(("listener", "answered"), [("native", "ANSWER"), ("replication", "MESSAGE")])
def test_whatever_comes_as_frames_has_a_proper_answer(witness: Witness, listener: str, answered: str) -> None:
    """Frames with wrong headers, messages and attachments are answered or refused, or end their connection alone."""
    processes = witness.processes()
    contents = Fuzz(SEED).connections(max(200, CALLS // 20), are_streams=listener == "replication")
    seen = asyncio.run(converse(witness.address(listener), contents))
    assert {kind for kind, _ in seen} >= {"WELCOME", answered, "ERROR"}
    assert any(code == "ERROR_CODE_INVALID_REQUEST" for _, code in seen)
    assert witness.processes() == processes
    witness.work()


def test_whatever_comes_at_the_http_port_ends_its_connection_alone(witness: Witness) -> None:
    """Heads of requests that no scraper sends."""
    processes = witness.processes()
    asyncio.run(pour(witness.address("metrics"), list(Fuzz(SEED).heads(max(50, CALLS // 200)))))
    assert witness.processes() == processes
    witness.work()
