"""A broker process under bombs: its memory stays within bounds, and others keep producing."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.batch import Codec
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import ErrorCode

from tests.integration.conftest import broker_etcd, broker_process  # noqa: F401  (fixtures)
from tests.integration.test_broker_limits import fetch, produce, start_leading
from tests.security.poison import MIB, header_bomb, poisons, zeros_bomb

BOMB = zeros_bomb(60 * MIB, noise=300_000)


def memory(broker: Any, what: str) -> int:
    """A figure of /proc, in bytes: `VmRSS` now, `VmHWM` the most since it was reset."""
    status = Path(f"/proc/{broker._process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(what)).split()[1]) * 1024


def grown(broker: Any, work: Any) -> int:
    """How far the broker's memory rose above where it was while `work` ran."""
    Path(f"/proc/{broker._process.pid}/clear_refs").write_text("5")
    before = memory(broker, "VmRSS")
    work()
    return memory(broker, "VmHWM") - before


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def good(count: int = 10) -> bytes:
    return encode_batch([os.urandom(100)] * count, base_timestamp_ms=now_ms())


def as_records(broker: Any, topic_id: bytes, offset: int) -> Any:
    """Fetch in the simple form on a connection of its own; the answer, or the error's code."""
    part = broker_pb2.PartitionFetch(partition=0, offset=offset)
    topics = [broker_pb2.TopicFetch(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])]
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 32 * MIB)]
    with grpc.insecure_channel(broker.address, options=options) as channel:
        stub = broker_pb2_grpc.BrokerServiceStub(channel)
        try:
            answer = stub.Fetch(broker_pb2.FetchRequest(topics=topics, as_records=True), timeout=60)
        except grpc.RpcError as error:
            return error.code()
        return answer.topics[0].partitions[0]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by /proc")
def test_bombs_cost_a_broker_no_more_than_their_bounds(broker_process: Any) -> None:  # noqa: F811
    """Eight bombs at once on their way in, and eight fetches of them as records."""
    topic_id = start_leading(broker_process, durability="async")
    assert not produce(broker_process, topic_id, good()).HasField("error")

    def send() -> None:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: produce(broker_process, topic_id, BOMB), range(8)))
        assert [result.HasField("error") for result in results] == [False] * 8

    assert grown(broker_process, send) < 128 * MIB

    def refuse() -> None:
        for name, batch in poisons().items():
            assert produce(broker_process, topic_id, batch).error.code == ErrorCode.CORRUPT_BATCH, name
        assert produce(broker_process, topic_id, header_bomb(8_000_000)).error.code == ErrorCode.CORRUPT_BATCH

    assert grown(broker_process, refuse) < 128 * MIB
    headers = [[("", b"")] * 1000] * 1000
    many = encode_batch([None] * 1000, headers=headers, base_timestamp_ms=now_ms(), codec=Codec.LZ4)
    produced = produce(broker_process, topic_id, many)
    assert not produced.HasField("error"), produced.error
    last = produced.base_offsets[0]

    def read() -> None:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda n: as_records(broker_process, topic_id, 10 if n % 2 else last), range(16)))
        for answer in answers:
            if isinstance(answer, grpc.StatusCode):
                assert answer is grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                assert answer.records or answer.error.code == ErrorCode.BATCH_TOO_LARGE

    assert grown(broker_process, read) < 192 * MIB
    assert not produce(broker_process, topic_id, good()).HasField("error")
    assert fetch(broker_process, topic_id, 0).batches
