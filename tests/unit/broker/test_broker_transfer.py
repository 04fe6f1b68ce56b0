"""The transfer port by bare sockets: what it sends, what it refuses, whom it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time

import pytest
from headrace.log import DataDirectory, DiskLimits, LogSettings
from headrace.v1 import broker_pb2, errors_pb2
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from headrace.wire.errors import FencedBrokerError, InvalidRequestError, ThrottledError, from_detail
from headrace.wire.transfer import ANSWER, ANSWER_HEAD, DISCARD, PREFACE, REFUSAL, REQUEST_HEAD, WHOLE
from headrace.wire.zero_copy import parse_fetch_response
from headrace_broker.metrics import BrokerMetrics
from headrace_broker.rpc import transfer
from headrace_broker.rpc.fetch import Located
from headrace_broker.rpc.transfer import TransferServer
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

TOPIC_ID = bytes(range(16))
SECONDS = 20.0


class FakeService:
    """Answers each request with the whole log; a test may put something else in the place of `answer`."""

    def __init__(self, log):
        self.log = log
        self.asked = []
        self.cancelled = asyncio.Event()
        self.answer = self.whole_log
        self.lease_error = None

    async def locate(self, request, peer):
        self.asked.append(request)
        return await self.answer()

    async def whole_log(self):
        response = broker_pb2.FetchResponse()
        response.topics.add(name="t").partitions.add(partition=0, high_watermark=int(self.log.log_end_offset))
        return Located(response, [[self.log.reader.read(0, 1 << 30, self.log.log_end_offset)]])

    async def never(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    def check_lease(self, outcome):
        if self.lease_error is not None:
            raise self.lease_error


class Reader:
    """A connection of a client, over asyncio."""

    def __init__(self, streams):
        self.receiving, self.sending = streams

    async def ask(self, request=b""):
        self.sending.write(REQUEST_HEAD.pack(len(request)) + request)
        return await self.answer()

    async def answer(self):
        """Kind, body, verdict."""
        kind, size = ANSWER_HEAD.unpack(await self.receiving.readexactly(ANSWER_HEAD.size))
        return kind, await self.receiving.readexactly(size), await self.receiving.readexactly(1)

    async def ended(self):
        try:
            return await self.receiving.read(1) == b""
        except ConnectionResetError:
            return True

    async def close(self):
        self.sending.close()
        with contextlib.suppress(ConnectionResetError):
            await self.sending.wait_closed()


class Bench:
    def __init__(self, log, *, max_connections=4):
        registry = CollectorRegistry()
        self.service = FakeService(log)
        self.metrics = BrokerMetrics(registry)
        self.registry = registry
        self.server = TransferServer(self.service, self.metrics, max_connections=max_connections)
        self.readers = []

    def metric(self, name):
        return self.registry.get_sample_value(f"headrace_broker_{name}")

    async def start(self):
        self.host, _, port = (await self.server.start("127.0.0.1:0")).rpartition(":")
        self.port = int(port)

    async def connect(self, preface=PREFACE, from_address="127.0.0.1"):
        local = (from_address, 0)
        reader = Reader(await asyncio.open_connection(self.host, self.port, local_addr=local))
        self.readers.append(reader)
        reader.sending.write(preface)
        return reader

    async def keep_busy(self):
        """A connection whose request is never answered."""
        self.service.answer = self.service.never
        reader, asked = await self.connect(), len(self.service.asked)
        reader.sending.write(REQUEST_HEAD.pack(0))
        await self.until(lambda: len(self.service.asked) > asked)
        return reader

    async def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)


@pytest.fixture
def log(tmp_path):
    """A log of 40 batches of 10 kB in files."""
    limits = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=TOPIC_ID, boot_id="b", limits=limits
    )
    log = directory.open_log(TOPIC_ID, 0, LogSettings())
    for number in range(40):
        batch = encode_batch([os.urandom(10_000)], base_timestamp_ms=number)
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=number)
    yield log
    directory.close(clean=False, broker_epoch=1)


@contextlib.asynccontextmanager
async def connecting(log, **options):
    bench = Bench(log, **options)
    await bench.start()
    try:
        yield bench
    finally:
        for reader in bench.readers:
            await reader.close()
        await bench.server.stop()


@pytest.fixture
def bench(log, request):
    return connecting(log, **getattr(request, "param", {}))


async def test_batches_are_sent_as_they_lie_in_the_file(bench, log):
    """One answer after the other on one connection; the body is what gRPC would have answered."""
    with log.reader.read(0, 1 << 30, log.log_end_offset) as found:
        stored = found.read()
    reader = await bench.connect()
    for client_id in ("one", "two"):
        kind, body, verdict = await reader.ask(broker_pb2.FetchRequest(client_id=client_id).SerializeToString())
        assert (kind, verdict) == (ANSWER, WHOLE)
        answer = parse_fetch_response(body)
        assert bytes(answer.batches[0][0]) == stored
        assert broker_pb2.FetchResponse.FromString(body).topics[0].partitions[0].batches == stored
    assert [request.client_id for request in bench.service.asked] == ["one", "two"]
    assert bench.metric("transfer_connections") == 1


async def test_an_answer_whose_log_was_truncated_meanwhile_is_dropped(bench, log):
    """The range may hold bytes of another epoch by then: the checksum would not tell."""

    async def cut():
        located = await bench.service.whole_log()
        log.truncate_to(39)
        batch = encode_batch([bytes(10_000)], base_timestamp_ms=1)
        log.append([(batch, read_header(batch))], leader_epoch=1, append_timestamp_ms=50)
        return located

    bench.service.answer = cut
    reader = await bench.connect()
    assert (await reader.ask())[2] == DISCARD


async def test_a_file_that_ends_too_early_ends_the_connection(bench, log):
    """Nothing is made up for what is not there."""

    async def cut():
        located = await bench.service.whole_log()
        log.truncate_to(20)
        return located

    bench.service.answer = cut
    reader = await bench.connect()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.ask()
    await bench.until(lambda: bench.metric("transfer_broken_total") == 1)


async def test_what_a_broker_without_its_lease_sent_is_dropped(bench):
    """The same gate as behind gRPC's Fetch, after the bytes."""
    bench.service.lease_error = FencedBrokerError("the broker's lease cannot be trusted now")
    reader = await bench.connect()
    assert (await reader.ask())[2] == DISCARD


async def test_refusals_are_typed_and_the_connection_stays_usable(bench):
    """Of the whole request; those of a partition are in the answer."""
    reader = await bench.connect()

    async def refuse():
        raise ThrottledError("too much", retry_after_ms=7)

    whole_log, bench.service.answer = bench.service.answer, refuse
    kind, body, verdict = await reader.ask()
    error = from_detail(errors_pb2.ErrorDetail.FromString(body))
    assert (kind, verdict, type(error), error.retry_after_ms) == (REFUSAL, WHOLE, ThrottledError, 7)
    kind, body, _ = await reader.ask(b"\xff\xff\xff")
    assert isinstance(from_detail(errors_pb2.ErrorDetail.FromString(body)), InvalidRequestError)
    bench.service.answer = whole_log
    assert (await reader.ask())[0] == ANSWER


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + REQUEST_HEAD.pack((1 << 20) + 1)])
async def test_who_speaks_something_else_is_cut_off(bench, said):
    """A browser, or a request that no client would send: nothing is answered and nothing is held for it."""
    reader = await bench.connect(said)
    assert await reader.ended()
    assert bench.service.asked == []


@pytest.mark.parametrize("bench", [{"max_connections": 1}], indirect=True)
async def test_one_connection_too_many_is_closed(bench):
    """Its client continues over gRPC; when another one has left there is room again."""
    reader = await bench.keep_busy()
    assert await (await bench.connect()).ended()
    assert bench.metric("transfer_refused_total") == 1
    await reader.close()
    await bench.until(lambda: bench.metric("transfer_connections") == 0)
    bench.service.answer = bench.service.whole_log
    assert (await (await bench.connect()).ask())[0] == ANSWER


@pytest.mark.parametrize("bench", [{"max_connections": 4}], indirect=True)
async def test_a_silent_connection_makes_room_for_one_that_comes(bench):
    """F16: a new connection takes the place of a silent one; a connection with a request keeps its own."""
    busy = await bench.keep_busy()
    silent = [await bench.connect(b"") for _ in range(6)]
    bench.service.answer = bench.service.whole_log
    honest = await bench.connect()
    assert (await honest.ask())[0] == ANSWER
    assert await silent[0].ended()
    assert not busy.receiving.at_eof()


@pytest.mark.parametrize("bench", [{"max_connections": 4}], indirect=True)
async def test_an_address_has_its_share_of_the_places(bench):
    """F16: the busy connections of one address leave room for another one's."""
    for _ in range(2):
        await bench.keep_busy()
    assert await (await bench.connect()).ended()
    bench.service.answer = bench.service.whole_log
    assert (await (await bench.connect(from_address="127.0.0.2")).ask())[0] == ANSWER


async def test_a_request_that_trickles_is_cut_off(bench, monkeypatch):
    """F16: its time is that of the whole request."""
    monkeypatch.setattr(transfer, "REQUEST_SECONDS", 0.1)
    reader = await bench.connect()
    reader.sending.write(REQUEST_HEAD.pack(1000))
    with contextlib.suppress(ConnectionError):
        while not reader.receiving.at_eof():
            reader.sending.write(b"x")
            await reader.sending.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.receiving.read(1), 0.02)
    assert bench.service.asked == []


@pytest.mark.parametrize("request_bytes", [b"\x2a\x00" * (1 << 19), b"\x2a\x02\x12\x00" * (1 << 18), b"\xff\xff"])
async def test_a_request_over_the_limits_is_refused_unlocated(bench, request_bytes):
    """F16: a mebibyte of empty topics never reaches the event loop, and the connection stays usable."""
    reader = await bench.connect()
    kind, body, _ = await reader.ask(request_bytes)
    assert kind == REFUSAL
    assert isinstance(from_detail(errors_pb2.ErrorDetail.FromString(body)), InvalidRequestError)
    assert bench.service.asked == []
    assert (await reader.ask())[0] == ANSWER


@pytest.mark.parametrize("bench", [{"max_connections": 1}], indirect=True)
@pytest.mark.parametrize(("tell_seconds", "told"), [(60.0, 1), (0.0, 3)])
async def test_that_connections_are_refused_is_said_now_and_then(bench, monkeypatch, tell_seconds, told):
    """Each is counted, with at most one line in the log a minute: no reader notices, so it is the only trace."""
    monkeypatch.setattr(transfer, "TELL_SECONDS", tell_seconds)

    await bench.keep_busy()
    with capture_logs() as logged:
        for _ in range(3):
            assert await (await bench.connect()).ended()
    assert bench.metric("transfer_refused_total") == 3
    lines = [line for line in logged if line["event"] == "transfer_refused"]
    assert [(line["log_level"], line["max_transfer_connections"]) for line in lines] == [("warning", 1)] * told


async def test_a_long_poll_ends_when_its_reader_leaves(bench, monkeypatch):
    """No task waits for a reader that is gone."""
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.02)
    bench.service.answer = bench.service.never
    reader = await bench.connect()
    reader.sending.write(REQUEST_HEAD.pack(0))
    await bench.until(lambda: bench.service.asked)
    await reader.close()
    await bench.service.cancelled.wait()
    await bench.until(lambda: bench.metric("transfer_connections") == 0)


async def test_a_reader_that_takes_nothing_is_left(bench, log, monkeypatch):
    """What waits in its connection is bounded, and so is how long."""
    monkeypatch.setattr(transfer, "STALL_SECONDS", 0.05)

    async def much():
        response = broker_pb2.FetchResponse()
        topic = response.topics.add()
        slices = []
        for number in range(64):
            topic.partitions.add(partition=number)
            slices.append([log.reader.read(0, 1 << 30, log.log_end_offset)])
        return Located(response, slices)

    bench.service.answer = much
    with socket.create_connection((bench.host, bench.port)) as reader:
        reader.sendall(PREFACE + REQUEST_HEAD.pack(0))
        await bench.until(lambda: bench.metric("transfer_broken_total") == 1)


async def test_a_stop_ends_idle_connections(bench):
    """And returns: no thread is left behind."""
    reader = await bench.connect()
    await reader.ask()
    await bench.server.stop()
    assert await reader.ended()
    await bench.until(lambda: bench.metric("transfer_connections") == 0)
