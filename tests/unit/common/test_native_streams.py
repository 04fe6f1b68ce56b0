"""Streams of messages over the native protocol: both ends over sockets, and what a stranger can send to one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from unittest.mock import Mock

import pytest
from headrace.v1 import errors_pb2, native_pb2
from headrace.wire.errors import InvalidRequestError, NotAuthorizedError, UnsupportedVersionError, from_detail
from headrace.wire.frames import HEADER, MAX_HELLO_BYTES, PREFACE, Header, Kind, MethodCode, frame_head
from headrace_server.handshakes import own_handshake
from headrace_server.native import framed_connection, server
from headrace_server.native.outgoing import OutgoingMessage
from headrace_server.native.server import NativeServer
from headrace_server.native.streams import WAKING_BYTES, ServedStream, _OpenedStream, open_stream
from prometheus_client import CollectorRegistry

from tests.fakes.native_metrics import native_metrics

SECONDS = 20.0
METHOD = MethodCode.REPLICA_FETCH


class Leader:
    """A server whose streams a test serves."""

    def __init__(self):
        self.registry = CollectorRegistry()
        metrics = native_metrics(self.registry)
        self.streams = asyncio.Queue()
        self.end = asyncio.Event()
        self.error = None
        self.server = NativeServer(
            "broker-1", metrics, lambda of: ServedStream(of, METHOD, self._serve), executor=None, max_connections=10
        )
        self.address = ""

    async def _serve(self, stream):
        self.streams.put_nowait(stream)
        await self.end.wait()
        if self.error is not None:
            raise self.error

    async def connected(self):
        """Both ends of a new stream."""
        follower = await open_stream(self.address, METHOD, "broker-2", None)
        return follower, await asyncio.wait_for(self.streams.get(), SECONDS)

    @property
    def broken(self):
        return self.registry.get_sample_value("broken_total")


@contextlib.asynccontextmanager
async def leading():
    leader = Leader()
    leader.address = await leader.server.start("127.0.0.1:0")
    try:
        yield leader
    finally:
        await leader.server.stop(0)


async def read(stream):
    return await asyncio.wait_for(stream.read(), SECONDS)


async def test_an_error_behind_an_unread_message_is_not_lost_with_the_connection():
    """All of it arrives in one packet, and the connection is lost before the message is read."""
    welcome = native_pb2.Welcome(answered_by="broker-1", handshake=own_handshake())
    refusal = errors_pb2.ErrorDetail(code=errors_pb2.ERROR_CODE_NOT_AUTHORIZED, message="another name")
    data = b"".join(
        (
            frame_head(Kind.WELCOME, welcome.SerializeToString()),
            frame_head(Kind.MESSAGE, b"challenge", method=METHOD, correlation=1),
            frame_head(Kind.ERROR, refusal.SerializeToString()),
        )
    )

    follower = _OpenedStream(METHOD, "broker-2")
    transport = Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    follower.connection_made(transport)
    follower.get_buffer(-1)[: len(data)] = data
    follower.buffer_updated(len(data))
    follower.connection_lost(None)
    assert (await read(follower)).message == b"challenge"
    with pytest.raises(NotAuthorizedError, match="another name"):
        await read(follower)


async def test_a_follower_that_has_proven_who_it_is_counts_as_served():
    """While many addresses waste connections, those of followers are accepted."""
    async with leading() as leader:
        follower, served = await leader.connected()
        assert not leader.server._wasted._served
        served.admit(1 << 20)
        assert list(leader.server._wasted._served) == ["127.0.0.1"]
        follower.abort()


async def test_messages_go_both_ways_with_their_attachments():
    async with leading() as leader:
        follower, served = await leader.connected()
        served.admit(1 << 20)
        await follower.write(OutgoingMessage(b"fetch"))
        await follower.write(OutgoingMessage(b"again", [b"more", b"and more"]))
        assert (await read(served)).message == b"fetch"
        received = await read(served)
        assert (received.message, bytes(received.attachments)) == (b"again", b"moreand more")
        large = b"x" * 3_000_000
        writing = asyncio.create_task(served.write(OutgoingMessage(b"batches", [large])))
        received = await read(follower)
        await writing
        assert (received.message, bytes(received.attachments), received.is_discarded) == (b"batches", large, False)
        follower.abort()
        assert await read(served) is None
        with pytest.raises(ConnectionError):
            await served.write(OutgoingMessage(b"late"))


def noting(stream):
    """The least numbers of bytes for which a stream wakes, in turn, as it sets them."""
    noted, setting = asyncio.Queue(), stream._set_waking_bytes

    def set_and_note(least):
        setting(least)
        noted.put_nowait(stream._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    stream._set_waking_bytes = set_and_note
    return noted


async def until(noted, least, most):
    """Wait until a number in this range is set."""
    async with asyncio.timeout(SECONDS):
        while not least <= await noted.get() <= most:
            pass


async def test_a_large_message_wakes_for_large_parts_and_for_its_end():
    """Each wake-up costs a follower about 40 us, and packets arrive by 64 KiB."""
    async with leading() as leader:
        follower, served = await leader.connected()
        await served.write(OutgoingMessage(b"first"))
        assert (await read(follower)).message == b"first"
        noted, body = noting(follower), b"x" * (WAKING_BYTES + 1_000)
        head = frame_head(Kind.MESSAGE, b"batches", method=METHOD, correlation=2, attached=len(body))
        served._transport.write(head + body[:10])
        await until(noted, WAKING_BYTES, WAKING_BYTES)
        served._transport.write(body[10:-10])
        await until(noted, 10, WAKING_BYTES - 1)
        served._transport.write(body[-10:] + frame_head(Kind.MESSAGE, b"small", method=METHOD, correlation=3))
        received = await read(follower)
        assert (received.message, bytes(received.attachments)) == (b"batches", body)
        assert (await read(follower)).message == b"small"
        await until(noted, 1, 1)
        follower.abort()


async def test_a_stream_that_ends_within_a_large_message_wakes():
    async with leading() as leader:
        follower, served = await leader.connected()
        noted = noting(follower)
        served._transport.write(frame_head(Kind.MESSAGE, b"", method=METHOD, correlation=1, attached=1 << 22) + b"x")
        await until(noted, WAKING_BYTES, WAKING_BYTES)
        served.abort()
        assert await read(follower) is None


async def test_a_stream_with_tls_wakes_for_every_byte():
    """The socket may hold fewer bytes than the message lacks: the rest is in the buffers of TLS."""
    follower = _OpenedStream(METHOD, "broker-2")
    transport = Mock(spec=asyncio.Transport)
    carrier = Mock(spec=socket.socket)
    transport.get_extra_info.side_effect = {"ssl_object": object(), "socket": carrier}.get
    transport.is_closing.return_value = False
    follower.connection_made(transport)
    welcome = native_pb2.Welcome(answered_by="broker-1", handshake=own_handshake()).SerializeToString()
    data = frame_head(Kind.WELCOME, welcome)
    data += frame_head(Kind.MESSAGE, b"", method=METHOD, correlation=1, attached=WAKING_BYTES)
    follower.get_buffer(-1)[: len(data)] = data
    follower.buffer_updated(len(data))
    assert follower._reader.missing == WAKING_BYTES
    carrier.setsockopt.assert_not_called()
    follower.connection_lost(None)


@pytest.mark.parametrize("is_valid", [True, False])
async def test_a_message_is_received_once_it_is_confirmed_or_discarded(log, is_valid):
    """The verdict is that of the moment in which everything has left."""
    async with leading() as leader:
        follower, served = await leader.connected()
        found = log.reader.read(0, 1 << 30, log.log_end_offset)
        expected, closed = found.read(), []
        close = lambda: closed.append(found.close())  # noqa: E731
        await served.write(OutgoingMessage(b"m", [found], lambda: is_valid, close))
        received = await read(follower)
        assert (bytes(received.attachments), received.is_discarded) == (expected, not is_valid)
        assert closed
        follower.abort()


async def test_one_message_waits_to_be_read_and_the_next_ones_in_the_senders_socket():
    """What is in memory is bounded: a sender waits until its messages are read."""
    async with leading() as leader:
        follower, served = await leader.connected()
        large = OutgoingMessage(b"m", [b"x" * 4_000_000])

        async def send():
            for _ in range(8):
                await served.write(large)

        sending = asyncio.create_task(send())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not sending.done()
        assert len(follower._inbox) <= 1
        for _ in range(8):
            assert len((await read(follower)).attachments) == 4_000_000
        await sending
        follower.abort()


async def test_an_error_ends_the_stream_at_both_ends():
    async with leading() as leader:
        follower, served = await leader.connected()
        leader.error = NotAuthorizedError("not one of us")
        await served.write(OutgoingMessage(b"before"))
        leader.end.set()
        assert (await read(follower)).message == b"before"
        with pytest.raises(NotAuthorizedError, match="not one of us"):
            await read(follower)
        assert follower.is_over


async def test_a_bug_of_the_server_ends_the_stream():
    async with leading() as leader:
        follower, _ = await leader.connected()
        leader.error = ValueError("a bug")
        leader.end.set()
        with pytest.raises(Exception, match="unexpected ValueError"):
            await read(follower)


async def test_a_stop_ends_streams():
    async with leading() as leader:
        follower, served = await leader.connected()
        stopping = asyncio.create_task(leader.server.stop(SECONDS))
        assert await read(served) is None
        leader.end.set()
        await stopping
        assert await read(follower) is None


async def test_nothing_listens():
    async with leading() as leader:
        address = leader.address
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await open_stream(address, METHOD, "broker-2", None)


async def test_a_name_that_no_host_can_have_is_as_one_that_is_not_found():
    """A broker may publish it; it is no bug of its followers, which a `UnicodeError` would stop."""
    with pytest.raises(OSError, match=r"broker\.\.2"):
        await open_stream("broker..2:7183", METHOD, "broker-2", None)


HELLO = PREFACE + frame_head(Kind.HELLO, native_pb2.Hello(client_id="x").SerializeToString())
FOREIGN = native_pb2.Hello(client_id="x")
FOREIGN.handshake.release = "9.0.0"


def message(data=b"m", **fields):
    return frame_head(Kind.MESSAGE, data, **{"method": METHOD, "correlation": 1, **fields})


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        (b"PRI * HTTP/2.0\r\n\r\n" + bytes(40), InvalidRequestError, "begins with"),
        (PREFACE + message(), InvalidRequestError, "no greeting"),
        (HELLO + HELLO[len(PREFACE) :], InvalidRequestError, "second greeting"),
        (PREFACE + frame_head(Kind.HELLO, b"\xff"), InvalidRequestError, "no such message"),
        (PREFACE + frame_head(Kind.HELLO, bytes(MAX_HELLO_BYTES + 1)), InvalidRequestError, "greeting of"),
        (PREFACE + frame_head(Kind.HELLO, FOREIGN.SerializeToString()), UnsupportedVersionError, "9.0.0"),
        (HELLO + message(correlation=2), InvalidRequestError, "follows message 0"),
        (HELLO + message() + message(), InvalidRequestError, "follows message 1"),
        (HELLO + message(method=MethodCode.FETCH), InvalidRequestError, "of method 2"),
        (HELLO + message(bytes(MAX_HELLO_BYTES + 1)), InvalidRequestError, "limit is 4096"),
        (HELLO + frame_head(Kind.CONFIRM, correlation=1), InvalidRequestError, "kind 7"),
        (HELLO + frame_head(Kind.REQUEST, b"", method=2, correlation=1, timeout_ms=5), InvalidRequestError, "kind 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_breaks_the_protocol_ends_the_stream(sent, error, says):
    """A typed error comes before there is memory for more than a greeting, and other streams are not affected."""
    async with leading() as leader:
        follower, served = await leader.connected()
        host, _, port = leader.address.rpartition(":")
        receiving, sending = await asyncio.open_connection(host, int(port))
        sending.write(sent)
        reading = asyncio.create_task(drain(leader, served))
        async with asyncio.timeout(SECONDS):
            header = Header._make(HEADER.unpack(await receiving.readexactly(HEADER.size)))
            body = await receiving.readexactly(header.size)
            while header.kind == Kind.WELCOME:
                header = Header._make(HEADER.unpack(await receiving.readexactly(HEADER.size)))
                body = await receiving.readexactly(header.size)
        assert (header.kind, header.correlation) == (Kind.ERROR, 0)
        refused = from_detail(errors_pb2.ErrorDetail.FromString(body))
        assert type(refused) is error
        assert says in refused.message
        assert leader.broken == 1
        sending.close()
        reading.cancel()
        await served.write(OutgoingMessage(b"well"))
        assert (await read(follower)).message == b"well"
        follower.abort()


async def drain(leader, served):
    """Read what comes on other streams."""
    while True:
        stream = await leader.streams.get()
        while stream is not served and await stream.read() is not None:
            pass


@pytest.mark.parametrize("sent", [b"", PREFACE[:3], HELLO + message()[:20]])
async def test_a_connection_that_falls_silent_is_ended(monkeypatch, sent):
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(framed_connection, "HELLO_SECONDS", 0.05)
    monkeypatch.setattr(framed_connection, "FRAME_SECONDS", 0.05)
    async with leading() as leader:
        host, _, port = leader.address.rpartition(":")
        receiving, sending = await asyncio.open_connection(host, int(port))
        sending.write(sent)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(receiving.read(), SECONDS)
        assert leader.broken == 1
        sending.close()
