"""A running broker at its bounds: memory for requests used up, a volume that is really full, corrupt index files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.errors import ErrorCode, Outcome, from_rpc_error

from tests.integration.replicated import until
from tests.integration.test_broker_process import batch, fetch, produce, read_all, until_leading

VOLUME_BYTES = 24 << 20


def produce_request(topic_id: bytes, *batches: bytes, timeout_ms: int = 5000) -> pb.ProduceRequest:
    part = pb.PartitionProduce(partition=0, batches=batches)
    topics = [pb.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])]
    return pb.ProduceRequest(timeout_ms=timeout_ms, topics=topics)


def start_leading(broker: Any, *, open_files: int = 0, **configs: object) -> bytes:
    """Start the broker with a topic that it leads; the topic's id."""
    broker.start(open_files)
    topic_id = asyncio.run(broker.create_topic("t", **configs))
    until(lambda: not fetch(broker, topic_id, 0).HasField("error"), "the broker leads")
    return topic_id


def test_requests_beyond_the_memory_budget_are_throttled(broker_process: Any) -> None:
    """Issue 2, 5: what waits for its acknowledgement counts; the next call is refused whole, with the time to wait."""
    broker_process.overrides = {"max_inflight_bytes": 32 << 20}
    topic_id = start_leading(broker_process, durability="async", flush_messages=100_000)
    large = [batch(os.urandom(1_000_000))] * 20
    holding = broker_process.stub.Produce.future(produce_request(topic_id, *large, timeout_ms=30_000), timeout=60)

    def refused() -> grpc.RpcError | None:
        try:
            broker_process.stub.Produce(produce_request(topic_id, *large, timeout_ms=1), timeout=10)
        except grpc.RpcError as error:
            return error
        return None

    error = from_rpc_error(until(refused, "a refusal"))
    assert (error.code, error.outcome, error.retriable) == (ErrorCode.THROTTLED, Outcome.NOT_APPLIED, True)
    assert error.retry_after_ms > 0
    holding.cancel()
    until(lambda: refused() is None, "room again after the cancelled call")


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of VOLUME_BYTES, where this user may mount one."""
    path = tmp_path / "volume"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        pytest.skip("a full volume needs mount, which is not here")
    if mounted.returncode:
        pytest.skip(f"a full volume needs the right to mount one: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=30, check=True)


def test_a_volume_that_fills_up_and_empties(broker_process: Any, small_volume: Path) -> None:
    """H35: the real ENOSPC is STORAGE_FULL, definite; reads succeed, room is noticed, and no part of a batch stays."""
    broker_process.data_dir = small_volume / "data"
    broker_process.overrides = {
        "disk_reserve_bytes": 1 << 20,
        "disk_refuse_below_bytes": 0,
        "disk_resume_above_bytes": 4 << 20,
    }
    topic_id = start_leading(broker_process)
    ballast = small_volume / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    sent: list[bytes] = []
    while True:
        value = b"%d " % len(sent) + os.urandom(700_000)
        result = produce(broker_process, topic_id, batch(value))
        if result.HasField("error"):
            break
        sent.append(value)
        assert len(sent) < 40
    error = result.error
    assert (error.code, error.outcome, error.retriable) == (ErrorCode.STORAGE_FULL, Outcome.NOT_APPLIED, True)
    assert len(sent) > 5
    assert read_all(broker_process, topic_id) == sent
    ballast.unlink()
    until(lambda: not produce(broker_process, topic_id, batch(b"more")).HasField("error"), "room is noticed")
    assert read_all(broker_process, topic_id) == [*sent, b"more"]
    broker_process.kill()
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until(lambda: not fetch(broker_process, topic_id, 0).HasField("error"), "the broker leads")
    assert read_all(broker_process, topic_id) == [*sent, b"more"]


@pytest.mark.parametrize("corruption", ["truncated", "overwritten"])
def test_corrupt_indexes_and_checkpoints_are_made_again(broker_process: Any, corruption: str) -> None:
    """H37, H38: indexes and checkpoints follow from the segments, so their corruption costs a scan and no record."""
    topic_id = start_leading(broker_process, segment_bytes=1 << 20, index_interval_bytes=4096)
    values = [b"%d " % number + bytes(100_000) for number in range(30)]
    for value in values:
        assert not produce(broker_process, topic_id, batch(value)).HasField("error")
    assert broker_process.stop() == 0
    (directory,) = broker_process.data_dir.glob(f"**/{topic_id.hex()}-0")
    hit = [path for path in directory.iterdir() if path.suffix != ".log" and path.stat().st_size]
    assert any("index" in path.suffix for path in hit), hit
    assert any("checkpoint" in path.name for path in hit), hit
    for path in hit:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2 + 1] if corruption == "truncated" else b"\xa5" * len(data))
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until(lambda: not fetch(broker_process, topic_id, 0).HasField("error"), "the broker leads")
    assert read_all(broker_process, topic_id) == values
    for offset in (0, 7, 29):
        header, _ = next(iter_batches(fetch(broker_process, topic_id, offset).batches))
        assert header.base_offset == offset
    assert list(produce(broker_process, topic_id, batch(b"on")).base_offsets) == [30]


def test_a_flood_of_connections_costs_the_log_nothing(broker_process: Any) -> None:
    """F5: with few open files allowed, a thousand connections: segments roll during the flood and after it.

    The listener closes what is beyond its share, so that the log, the lease, etcd and health keep theirs for as long as
    the flood lasts, here for more than two lease times; no restart is needed.
    """
    broker_process.overrides = {"metrics_listen": "127.0.0.1:0", "lease_ttl_ms": 1_000}
    topic_id = start_leading(
        broker_process, open_files=400, segment_bytes=1 << 20, max_batch_bytes=1 << 20, durability="fsync"
    )
    value = os.urandom(400 << 10)
    port = int(broker_process.address.rpartition(":")[2])
    flood: list[socket.socket] = []
    try:
        for _ in range(1_000):
            flood.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        health = "http://" + json.loads((broker_process.directory / "ready.json").read_text())["metrics_address"]
        until_at, sent = time.monotonic() + 2.5, 0
        while sent < 8 or time.monotonic() < until_at:
            if sent < 8:
                result = produce(broker_process, topic_id, batch(value))
                assert not result.HasField("error"), result.error
                sent += 1
            with urllib.request.urlopen(f"{health}/health/readiness", timeout=10) as answer:
                assert answer.status == 200
            flood.append(socket.create_connection(("127.0.0.1", port), timeout=20))
    finally:
        for each in flood:
            each.close()
    for _ in range(4):
        assert not produce(broker_process, topic_id, batch(value)).HasField("error")
    assert len(list(broker_process.data_dir.glob("*-0/*.log"))) > 4
    assert read_all(broker_process, topic_id) == [value] * 12
    log = broker_process.log()
    assert "open_files_limit_low" in log
    assert "log_offline" not in log
    assert "lease_changed" not in log
    assert broker_process.stop() == 0


def test_a_broker_holds_more_partitions_than_it_may_open_files(broker_process: Any) -> None:
    """Idle partitions keep no descriptor: 300 are written and read with 300 open files, and none goes offline."""
    broker_process.start(300)
    topic_ids = [asyncio.run(broker_process.create_topic(f"t{number}", partitions=50)) for number in range(6)]

    def call(each: Callable[[bytes, int], Any]) -> list[Any]:
        return [each(topic_id, partition) for topic_id in topic_ids for partition in range(50)]

    def segments_open() -> int:
        return sum(file.path.endswith(".log") for file in psutil.Process(broker_process._process.pid).open_files())

    def write(value: bytes) -> None:
        results = call(lambda topic_id, partition: produce(broker_process, topic_id, batch(value), partition=partition))
        assert not any(result.HasField("error") for result in results)
        assert segments_open() < 100

    call(lambda topic_id, partition: until_leading(broker_process, topic_id, partition))
    write(b"0")
    write(b"1")
    assert call(lambda topic_id, partition: read_all(broker_process, topic_id, partition)) == [[b"0", b"1"]] * 300
    assert segments_open() < 100
    assert "log_offline" not in broker_process.log()
    assert broker_process.stop() == 0
