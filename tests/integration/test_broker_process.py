"""The life of a broker process: starts that cannot be, stops, kills, corruption, lost leases, changes of the
metadata.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import tables_pb2, tables_pb2_grpc, topics_pb2
from headrace.wire.batch import iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import ErrorCode, Outcome, from_rpc_error
from headrace_server.metastore.etcd import EtcdMetastore

from tests.fork_server import run_command
from tests.integration.replicated import until


def batch(*values: bytes, **fields: Any) -> bytes:
    return encode_batch(list(values), base_timestamp_ms=time.time_ns() // 1_000_000, **fields)


def produce(broker: Any, topic_id: bytes, *batches: bytes, partition: int = 0) -> pb.PartitionProduceResult:
    part = pb.PartitionProduce(partition=partition, batches=batches)
    topics = [pb.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])]
    request = pb.ProduceRequest(timeout_ms=5000, topics=topics)
    return broker.stub.Produce(request, timeout=10).topics[0].partitions[0]


def fetch(broker: Any, topic_id: bytes, offset: int, partition: int = 0) -> pb.PartitionFetchResult:
    wanted = [pb.PartitionFetch(partition=partition, offset=offset)]
    topics = [pb.TopicFetch(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=wanted)]
    return broker.stub.Fetch(pb.FetchRequest(topics=topics), timeout=10).topics[0].partitions[0]


def read_all(broker: Any, topic_id: bytes, partition: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    while True:
        found = fetch(broker, topic_id, len(values), partition)
        assert not found.HasField("error"), found.error
        if not found.batches:
            return values
        for _, view in iter_batches(found.batches):
            values += decode_batch(view, max_payload_bytes=1 << 24).values()


def until_leading(broker: Any, topic_id: bytes, partition: int = 0) -> None:
    until(lambda: not fetch(broker, topic_id, 0, partition).HasField("error"), "the broker leads")


def run_to_end(broker: Any, **overrides: object) -> tuple[int, str]:
    """Run a broker that cannot start; its exit code and what it wrote."""
    done = run_command("headrace_broker", *broker.arguments(**overrides), timeout=30)
    return done.returncode, done.stderr


def one_error(stderr: str) -> str:
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in stderr
    return line


def test_unknown_and_missing_settings(broker_process: Any) -> None:
    """Issue 2, "Bad input": one line that names the nearest setting, exit code 2."""
    code, stderr = run_to_end(broker_process, lease_tll_ms=5)
    assert code == 2
    assert "lease_ttl_ms" in one_error(stderr)


def test_a_port_in_use(broker_process: Any) -> None:
    """Issue 2, "Bad input": one line that names the address, exit code 2; the data directory is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, stderr = run_to_end(broker_process, listen=address)
    assert code == 2
    assert address in one_error(stderr)
    broker_process.start()


def test_a_directory_of_another_cluster(broker_process: Any) -> None:
    """H42: a data directory of another cluster or another broker is refused, in one line."""
    broker_process.start()
    assert broker_process.stop() == 0
    for overrides in ({"cluster": broker_process.cluster + "-other"}, {"broker_id": 2}):
        code, stderr = run_to_end(broker_process, **overrides)
        assert code != 0
        assert str(broker_process.data_dir) in one_error(stderr)


def test_a_directory_opened_twice(broker_process: Any) -> None:
    """H42: the second process is refused by the lock; the first one keeps running."""
    broker_process.start()
    code, stderr = run_to_end(broker_process)
    assert code != 0
    assert str(broker_process.data_dir) in one_error(stderr)
    topic_id = asyncio.run(broker_process.create_topic("t"))
    until_leading(broker_process, topic_id)


def test_a_clean_stop_answers_waiting_fetches_and_loses_nothing(broker_process: Any) -> None:
    """H40: new calls are refused, waiting ones answered, all is flushed; the next session resumes this one, clean."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t", durability="async"))
    until_leading(broker_process, topic_id)
    assert list(produce(broker_process, topic_id, batch(b"a", b"b")).base_offsets) == [0]
    wanted = [pb.PartitionFetch(partition=0, offset=2)]
    topics = [pb.TopicFetch(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=wanted)]
    waiting = broker_process.stub.Fetch.future(
        pb.FetchRequest(topics=topics, max_wait_ms=50_000, min_bytes=1), timeout=60
    )
    until(lambda: fetch(broker_process, topic_id, 2).high_watermark == 2, "a call behind the waiting one")
    answers: list[Any] = []
    waiting.add_done_callback(lambda call: answers.append(call.code()))
    assert broker_process.stop() == 0
    assert answers == [grpc.StatusCode.OK]
    assert "clean=True" in broker_process.log().splitlines()[-1]
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until_leading(broker_process, topic_id)
    assert read_all(broker_process, topic_id) == [b"a", b"b"]


def test_kill_during_produce_loses_nothing_acknowledged(broker_process: Any) -> None:
    """I15, I16, I20: after kill -9 all acknowledged records are there, in order, once, and retries stay recognised."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t"))
    until_leading(broker_process, topic_id)
    acknowledged: list[int] = []
    enough = threading.Event()

    def send() -> None:
        for number in itertools.count():
            try:
                data = batch(b"%d" % number, producer_id=5, producer_epoch=0, base_sequence=number)
                result = produce(broker_process, topic_id, data)
            except grpc.RpcError:
                return
            if result.HasField("error"):
                return
            assert list(result.base_offsets) == [number]
            acknowledged.append(number)
            if number == 100:
                enough.set()

    sender = threading.Thread(target=send)
    sender.start()
    assert enough.wait(30)
    broker_process._process.kill()
    sender.join(30)
    broker_process.kill()
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until_leading(broker_process, topic_id)
    values = read_all(broker_process, topic_id)
    assert values == [b"%d" % number for number in range(len(values))]
    assert len(values) >= len(acknowledged) >= 101
    last = len(values) - 1
    again = batch(b"%d" % last, producer_id=5, producer_epoch=0, base_sequence=last)
    assert list(produce(broker_process, topic_id, again).base_offsets) == [last]
    onward = batch(b"on", producer_id=5, producer_epoch=0, base_sequence=last + 1)
    assert list(produce(broker_process, topic_id, onward).base_offsets) == [last + 1]


def test_a_corrupt_log_is_offline_and_the_others_are_served(broker_process: Any) -> None:
    """H33, I17: corruption below the fsynced mark is not cut; the replica leaves its key, others keep serving."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t", partitions=2))
    for number in (0, 1):
        until_leading(broker_process, topic_id, number)
        produce(broker_process, topic_id, *[batch(b"x" * 100)] * 10, partition=number)
    # The recovery point is written once everything is flushed and a checkpoint round has passed.
    assert broker_process.stop() == 0
    (path,) = sorted((broker_process.data_dir).glob(f"**/{topic_id.hex()}-0/*.log"))
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff" * 8)
    # Without the clean marker the start scans; without checkpoints it scans all of it.
    for marker in broker_process.data_dir.glob("*clean*"):
        marker.unlink()
    for checkpoint in broker_process.data_dir.glob(f"**/{topic_id.hex()}-0/*checkpoint*"):
        checkpoint.unlink()
    broker_process.start()
    state = asyncio.run(broker_process.partition_state(topic_id, 0))
    assert (state.leader, state.in_sync, state.eligible_leaders) == (None, (), ())
    asyncio.run(broker_process.elect(topic_id, 1))
    until_leading(broker_process, topic_id, 1)
    assert len(read_all(broker_process, topic_id, 1)) == 10
    error = produce(broker_process, topic_id, batch(b"y")).error
    assert (error.code, error.outcome) == (ErrorCode.STORAGE_OFFLINE, Outcome.NOT_APPLIED)
    assert path.name in error.message
    described = broker_process.stub.DescribeLogs(pb.DescribeLogsRequest(), timeout=10)
    assert [bool(log.offline_reason) for log in described.logs] == [True, False]


def test_a_full_disk_refuses_produce_and_serves_reads(broker_process: Any) -> None:
    """H35: STORAGE_FULL is definite and retriable, reads succeed, and a start with room takes produce again."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t"))
    until_leading(broker_process, topic_id)
    produce(broker_process, topic_id, batch(b"a"))
    assert broker_process.stop() == 0
    broker_process.overrides = {"disk_refuse_below_bytes": 1 << 60, "disk_resume_above_bytes": 1 << 60}
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until_leading(broker_process, topic_id)
    error = until(lambda: produce(broker_process, topic_id, batch(b"b")).error, "an error")
    assert (error.code, error.outcome, error.retriable) == (ErrorCode.STORAGE_FULL, Outcome.NOT_APPLIED, True)
    values = read_all(broker_process, topic_id)
    assert values[0] == b"a"
    assert broker_process.stop() == 0
    broker_process.overrides = {}
    broker_process.start()
    asyncio.run(broker_process.elect(topic_id))
    until_leading(broker_process, topic_id)
    assert list(produce(broker_process, topic_id, batch(b"c")).base_offsets) == [len(values)]


def test_a_lost_lease_fences_and_a_new_session_resumes(broker_process: Any) -> None:
    """H76, I12: an own key that is gone ends the session; the next one is later, clean, and leads again."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t"))
    until_leading(broker_process, topic_id)
    produce(broker_process, topic_id, batch(b"a"))
    before = asyncio.run(broker_process.partition_state(topic_id)).leader

    async def revoke() -> None:
        metastore = EtcdMetastore([broker_process.etcd.endpoint])
        keys = (await broker_process._identity(metastore)).keyspace
        found = (await metastore.get(keys.broker(1))).key_value
        await metastore.revoke_lease(found.lease_id)
        await metastore.close()

    asyncio.run(revoke())
    until(lambda: broker_process.log().count("registered  ") == 2, "a second registration")
    error = produce(broker_process, topic_id, batch(b"b")).error
    assert error.code in (ErrorCode.FENCED_BROKER, ErrorCode.NOT_LEADER)
    assert error.outcome == Outcome.NOT_APPLIED
    after = asyncio.run(broker_process.elect(topic_id))
    assert after.leader.broker_epoch > before.broker_epoch
    until_leading(broker_process, topic_id)
    assert read_all(broker_process, topic_id) == [b"a"]


def test_topics_change_and_go_while_the_broker_runs(broker_process: Any) -> None:
    """H26: settings apply at once; a deleted topic is unknown by its id, and its directory goes after the delay."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t", file_delete_delay_ms=0))
    until_leading(broker_process, topic_id)
    large = batch(bytes(5000))
    assert list(produce(broker_process, topic_id, large).base_offsets) == [0]
    asyncio.run(broker_process.set_configs("t", max_batch_bytes=2000, file_delete_delay_ms=0))
    until(lambda: produce(broker_process, topic_id, large).error.code == ErrorCode.BATCH_TOO_LARGE, "the new limit")
    assert list(broker_process.data_dir.glob(f"**/{topic_id.hex()}-0"))
    asyncio.run(broker_process.delete_topic("t", topic_id))
    until(lambda: fetch(broker_process, topic_id, 0).error.code == ErrorCode.UNKNOWN_TOPIC_ID, "the topic is gone")
    until(lambda: not [name for name in os.listdir(broker_process.data_dir) if topic_id.hex() in name], "it is gone")


def test_only_flushed_records_are_visible_under_a_flush_policy(broker_process: Any) -> None:
    """Paper 3.1: with flush_messages, records are visible after their flush only; acks=leader does not wait for it."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t", durability="async", flush_messages=3))
    until_leading(broker_process, topic_id)
    part = pb.PartitionProduce(partition=0, batches=[batch(b"a"), batch(b"b")])
    topics = [pb.TopicProduce(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=[part])]
    request = pb.ProduceRequest(acks=pb.ACKS_LEADER, timeout_ms=5000, topics=topics)
    assert list(broker_process.stub.Produce(request, timeout=10).topics[0].partitions[0].base_offsets) == [0, 1]
    assert fetch(broker_process, topic_id, 0).high_watermark == 0
    request.timeout_ms = 100
    request.acks = pb.ACKS_ALL
    request.topics[0].partitions[0].batches[:] = [batch(b"c")]
    result = broker_process.stub.Produce(request, timeout=10).topics[0].partitions[0]
    assert not result.HasField("error"), result
    assert read_all(broker_process, topic_id) == [b"a", b"b", b"c"]
    asyncio.run(broker_process.set_configs("t", durability="async", flush_messages=1000))
    until(lambda: (Path(broker_process.directory) / "broker.log").read_text().count("topic_config_applied"), "settings")
    request.topics[0].partitions[0].batches[:] = [batch(b"d")]
    late = broker_process.stub.Produce(request, timeout=10).topics[0].partitions[0]
    assert (late.error.code, late.error.outcome) == (ErrorCode.TIMED_OUT, Outcome.UNKNOWN)
    assert list(late.base_offsets) == [3]


def test_the_process_stays_small_and_leaves_no_descriptor(broker_process: Any) -> None:
    """Issue 2: memory does not grow with the log; slices are closed."""
    broker_process.start()
    topic_id = asyncio.run(broker_process.create_topic("t", durability="async", segment_bytes=2 << 20))
    until_leading(broker_process, topic_id)
    data = batch(*[os.urandom(1000)] * 1000)
    for _ in range(60):
        assert not produce(broker_process, topic_id, data).HasField("error")
    offset = 0
    while offset < 60_000:
        for header, _ in iter_batches(fetch(broker_process, topic_id, offset).batches):
            offset = header.end_offset
    status = Path(f"/proc/{broker_process._process.pid}/status").read_text()
    resident_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert resident_kib < 200 * 1024


def test_an_outage_of_etcd_does_not_stop_the_data(broker_with_own_etcd: Any) -> None:
    """H84: silence from etcd does not fence; produce and fetch succeed past the lease's time."""
    broker = broker_with_own_etcd
    broker.overrides = {"lease_ttl_ms": 1000}
    broker.start()
    topic_id = asyncio.run(broker.create_topic("t"))
    until_leading(broker, topic_id)
    os.kill(broker.etcd.pid, signal.SIGSTOP)
    try:
        until(lambda: "lease_changed" in broker.log(), "the lease is silent")
        assert list(produce(broker, topic_id, batch(b"a")).base_offsets) == [0]
        assert read_all(broker, topic_id) == [b"a"]
    finally:
        os.kill(broker.etcd.pid, signal.SIGCONT)


def test_a_leader_in_doubt_answers_nothing_about_the_newest_rows(broker_with_own_etcd: Any) -> None:
    """I31: another leader may have been elected. Writes need its followers, and reads from replicas may be old."""
    broker = broker_with_own_etcd
    broker.overrides = {"lease_ttl_ms": 1000}
    broker.start()
    topic_id = asyncio.run(broker.create_topic("t", cleanup_policy="compact", table="yes"))
    until_leading(broker, topic_id)
    tables, table = tables_pb2_grpc.TableServiceStub(broker.channel), topics_pb2.TopicRef(topic_id=topic_id)

    def read(consistency: Any) -> Any:
        asked = tables_pb2.TableRead(table=table, consistency=consistency, timeout_ms=5_000)
        return tables.GetRows(tables_pb2.GetRowsRequest(read=asked, keys=[b"r"]), timeout=10).rows[0]

    def write(value: bytes, **condition: int) -> Any:
        columns = [tables_pb2.WriteColumn(name=b"c", value=value)]
        request = tables_pb2.WriteRowRequest(table=table, key=b"r", columns=columns, timeout_ms=5_000, **condition)
        return tables.WriteRow(request, timeout=10)

    def delete_absent() -> Any:
        request = tables_pb2.WriteRowRequest(table=table, key=b"absent", delete_row=True, timeout_ms=5_000)
        return tables.WriteRow(request, timeout=10)

    assert write(b"1").version == read(tables_pb2.CONSISTENCY_LEADER).version == 0
    assert delete_absent().applied
    os.kill(broker.etcd.pid, signal.SIGSTOP)
    try:
        until(lambda: "lease_changed" in broker.log(), "the lease is silent")
        for act in (lambda: read(tables_pb2.CONSISTENCY_LEADER), lambda: write(b"lost", if_version=7), delete_absent):
            with pytest.raises(grpc.RpcError) as caught:
                act()
            refused = from_rpc_error(caught.value)
            assert (refused.code, refused.outcome) == (ErrorCode.FENCED_BROKER, Outcome.NOT_APPLIED)
        assert write(b"2").version == write(b"3", if_version=1).version - 1 == 1
        assert read(tables_pb2.CONSISTENCY_REPLICA).version == 2
    finally:
        os.kill(broker.etcd.pid, signal.SIGCONT)


def test_fencing_on_silence_where_it_is_set(broker_with_own_etcd: Any) -> None:
    """fence_on_lease_loss=true trades availability for reads that are never stale."""
    broker = broker_with_own_etcd
    broker.overrides = {"lease_ttl_ms": 1000, "fence_on_lease_loss": "true"}
    broker.start()
    topic_id = asyncio.run(broker.create_topic("t"))
    until_leading(broker, topic_id)
    os.kill(broker.etcd.pid, signal.SIGSTOP)
    try:
        until(lambda: "lease_changed" in broker.log(), "the lease is silent")
        with pytest.raises(grpc.RpcError) as caught:
            fetch(broker, topic_id, 0)
        assert from_rpc_error(caught.value).code is ErrorCode.FENCED_BROKER
    finally:
        os.kill(broker.etcd.pid, signal.SIGCONT)
