"""A directory as the source of copies, and not as their target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

import headrace
import pytest
from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.operations import Operation, execute
from headrace.client.net.transport import open_connections
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace.wire.table_keys import table_key
from headrace.wire.zero_copy import SplicedMessage

WAIT = 30
T = TypeVar("T")


@pytest.fixture
def log(tmp_path: Path) -> headrace.LogDirectory:
    with headrace.open(tmp_path / "events") as log:
        yield log


@contextmanager
def calls_of(log: headrace.LogDirectory, topic: str) -> Iterator[tuple[PartitionCalls, Callable[..., object]]]:
    config = build(AdminConfig, {"bootstrap_servers": log.bootstrap_servers})
    calls = PartitionCalls(topic, log.admin.describe_topic(topic).topic_id, config)
    with closing(open_connections("Test", config)) as connections:

        def run(operation: Operation[T]) -> T:
            return execute(operation, connections.run_step)

        yield calls, run


def test_a_directory_takes_no_copies(log: headrace.LogDirectory) -> None:
    """It says so, whatever the setting: its topics are written by this process alone."""
    log.admin.create_topic("clicks", config={"mirror": "m"})
    with calls_of(log, "clicks") as (calls, run):
        with pytest.raises(InvalidRequestError, match="a directory has no ProduceZeroCopy"):
            run(calls.append(0, [], deletions_end=0))
        request = broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=1_000, as_copies=True)
        request.topics.add(topic=topics_pb2.TopicRef(name="clicks")).partitions.add(partition=0)
        answers: Queue[HeadraceError | None] = Queue()
        log._server.produce(SplicedMessage(request, [[]]), lambda response, error: answers.put(error))
        error = answers.get(timeout=WAIT)
        assert isinstance(error, InvalidRequestError)
        assert "a directory takes no copies of another log" in error.message


def test_a_fetch_tells_of_removed_deletions(log: headrace.LogDirectory) -> None:
    """H151: who copied a key before its deletion was removed, and not the deletion, finds out."""
    log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
    partition = log._server.directory.readable(next(iter(log._server.directory.all_topics())), 0)
    with calls_of(log, "users") as (calls, run):
        with log.producer() as producer:
            for value in (b"1", None, b"2"):
                key = table_key(b"kept" if value == b"2" else b"gone", b"c")
                producer.send("users", value, key=key).result(WAIT)
            assert run(calls.fetch(0, 0, max_wait_ms=0, max_bytes=1_000)).deletions_end == 0
            log._server.directory._care(partition, retains=False, compacts=False)
            partition.log.close_below(partition.visible_end)
            partition.compact(1 << 50, partition.visible_end)
            producer.send("users", b"3", key=table_key(b"last", b"c")).result(WAIT)
        fetched = run(calls.fetch(0, 0, max_wait_ms=0, max_bytes=1_000))
        assert fetched.deletions_end == partition.log.deletions_end == 2


def test_a_fetch_at_the_end_of_an_emptied_log_has_its_chain_value(log: headrace.LogDirectory) -> None:
    """A copy that lacks records that were deleted can end there; with records the answer has no such value."""
    log.admin.create_topic("clicks")
    with calls_of(log, "clicks") as (calls, run):
        with log.producer() as producer:
            for value in (b"1", b"2"):
                producer.send("clicks", value).result(WAIT)
        fetched = run(calls.fetch(0, 0, max_wait_ms=0, max_bytes=1_000))
        *_, (last, _) = iter_batches(fetched.batches)
        at_end = run(calls.fetch(0, 2, max_wait_ms=0, max_bytes=1_000))
        assert (fetched.chain_crc, at_end.chain_crc) == (None, None)
        log.admin.delete_records("clicks", {0: 2})
        assert run(calls.fetch(0, 2, max_wait_ms=0, max_bytes=1_000)).chain_crc == last.chain_crc
