"""A follower process under a leader by hand, which answers late, twice, wrongly, or with bytes that have rotted.

The hand is broker 2: it registers in etcd, owns a real log, and says on the wire what a test wants.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from headrace.log.directory import DataDirectory
from headrace.log.settings import LogSettings
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import topics_pb2
from headrace.wire.batch import check_batch
from headrace.wire.errors import FencedLeaderEpochError, to_detail
from headrace_server.cluster_identity import ClusterIdentity, read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.internal_v1 import replication_pb2 as internal
from headrace_server.metastore.api import Put
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.partition_state import PartitionState, Replica, encode

from tests.integration.hand_streams import HandServer
from tests.integration.metastore import connected
from tests.integration.replicated import SECONDS, batch, until

Answer = TypeVar("Answer")
HAND, FOLLOWER = 2, 1
NOWHERE = "127.0.0.1:1"


class HandLeader:
    """Broker 2, which leads one partition that broker 1 follows."""

    def __init__(self, follower: Any, directory: Path) -> None:
        self.follower = follower
        self.topic, self.topic_id = f"t-{secrets.token_hex(4)}", secrets.token_bytes(16)
        self.epoch = 0
        self._fetches: queue.SimpleQueue[internal.PartitionReplicaFetch] = queue.SimpleQueue()
        self.identities: list[internal.FollowerIdentity] = []
        self.server = HandServer()
        threading.Thread(target=self._sort, daemon=True).start()
        self._directory = DataDirectory.open(
            str(directory), cluster_id="hand", generation=1, broker_id=HAND, new_storage_id=b"h" * 16
        )
        self.log = self._directory.open_log(self.topic_id, 0, LogSettings())
        self.log.start_epoch(0)

    def close(self) -> None:
        self.server.requests.put(internal.ReplicaFetchRequest(follower=internal.FollowerIdentity(broker_id=HAND)))
        self.server.close()
        self._directory.close_log(self.log)
        self._directory.close(clean=True)

    def _sort(self) -> None:
        while (request := self.server.requests.get()).follower.broker_id != HAND:
            if request.HasField("follower"):
                self.identities.append(request.follower)
            for topic in request.topics:
                for entry in topic.partitions:
                    self._fetches.put(entry)

    # --- etcd ---

    def in_etcd(self, work: Callable[[EtcdMetastore, ClusterIdentity], Awaitable[Answer]]) -> Answer:
        async def run() -> Answer:
            async with connected(self.follower.etcd.endpoint) as metastore:
                return await work(metastore, await read_or_create(metastore, self.follower.cluster, "unused"))

        return asyncio.run(run())

    def begin(self, config: dict[str, str] | None = None) -> None:
        """Register, make the topic, and lead epoch 0 of it."""

        async def write(metastore: EtcdMetastore, identity: ClusterIdentity) -> None:
            keys = identity.keyspace
            live = metadata_pb2.BrokerLive(
                broker_id=HAND, address=NOWHERE, replication_address=self.server.address, boot_id=b"h" * 16
            )
            result = await metastore.txn([], [Put(keys.broker(HAND), live.SerializeToString())])
            self.me = Replica(HAND, result.revision)
            self.state = PartitionState(
                replicas=(HAND, FOLLOWER), leader=self.me, leader_epoch=0, in_sync=(self.me,), min_insync_replicas=1
            )
            topic = metadata_pb2.Topic(
                name=self.topic, topic_id=self.topic_id, partitions=1, replication_factor=2, configs=config or {}
            ).SerializeToString()
            await metastore.txn(
                [],
                [
                    Put(keys.partition(self.topic_id, 0), encode(self.state)),
                    Put(keys.topic_by_id(self.topic_id), topic),
                    Put(keys.topic(self.topic), topic),
                ],
            )

        self.in_etcd(write)

    def lead_again(self, *, unclean: bool = False) -> None:
        """Begin the next leader epoch."""
        self.epoch += 1

        async def write(metastore: EtcdMetastore, identity: ClusterIdentity) -> None:
            self.state = PartitionState(
                replicas=(HAND, FOLLOWER),
                leader=self.me,
                leader_epoch=self.epoch,
                in_sync=(self.me,),
                partition_epoch=self.state.partition_epoch + 1,
                unclean=unclean,
                unclean_epoch=self.epoch if unclean else 0,
            )
            await metastore.txn([], [Put(identity.keyspace.partition(self.topic_id, 0), encode(self.state))])

        self.in_etcd(write)
        self.log.start_epoch(self.epoch)

    # --- the wire ---

    def append(self, *values: bytes) -> None:
        """One batch at the end of the hand's log."""
        data = batch(*values)
        header = check_batch(data, max_batch_bytes=1 << 20, max_records=1_000, max_payload_bytes=1 << 20)
        self.log.append([(data, header)], leader_epoch=self.epoch, append_timestamp_ms=time.time_ns() // 1_000_000)

    def next_fetch(self) -> internal.PartitionReplicaFetch:
        """The next fetch that comes."""
        return self._fetches.get(timeout=SECONDS)

    def answer(self, fetch: internal.PartitionReplicaFetch, batches: bytes = b"", **fields: Any) -> None:
        """Say anything to a fetch."""
        values = {"token": fetch.token, "leader_epoch": fetch.leader_epoch, "batches_size": len(batches), **fields}
        result = internal.PartitionReplicaFetchResult(partition=0, **values)
        topic = internal.TopicReplicaFetchResult(topic_id=self.topic_id, partitions=[result])
        self.server.answer(internal.ReplicaFetchResponse(topics=[topic]), [batches])

    def batches(self, offset: int) -> bytes:
        """What the hand's log has from an offset on."""
        with self.log.reader.read(offset, 1 << 20, self.log.log_end_offset) as found:
            return found.read()

    def give(self, fetch: internal.PartitionReplicaFetch) -> None:
        """Answer as a leader does, all of it committed."""
        end = self.log.log_end_offset
        data = self.batches(fetch.offset) if fetch.offset < end else b""
        self.answer(fetch, batches=data, high_watermark=end, log_start_offset=self.log.log_start_offset)

    # --- the follower ---

    def held(self) -> pb.LogDescription:
        """The follower's log."""
        topics = [topics_pb2.TopicRef(topic_id=self.topic_id)]
        (log,) = self.follower.stub.DescribeLogs(pb.DescribeLogsRequest(topics=topics), timeout=10).logs
        return log

    def bring(self, *batches: tuple[bytes, ...]) -> internal.PartitionReplicaFetch:
        """Append and give batches; the follower's next fetch, with all of it on its disk and committed."""
        for values in batches:
            self.append(*values)
        self.give(self.next_fetch())
        fetch = self.next_fetch()
        until(lambda: self.held().high_watermark == self.log.log_end_offset, "all of it committed at the follower")
        return fetch


@pytest.fixture
def leader(broker: Any, tmp_path: Path) -> Iterator[HandLeader]:
    hand = HandLeader(broker, tmp_path / "hand")
    try:
        hand.begin()
        yield hand
    finally:
        hand.close()
        if hand.held().is_follower:
            asyncio.run(broker.delete_topic(hand.topic, hand.topic_id))


def test_a_follower_copies(leader: HandLeader) -> None:
    """The follower says who it is, asks from its end on, appends unchanged bytes, and then asks with what it has."""
    first = leader.next_fetch()
    assert (first.leader_epoch, first.offset, first.durable_offset, first.last_epoch) == (0, 0, 0, -1)
    (identity,) = leader.identities[-1:]
    assert identity.broker_id == FOLLOWER
    assert identity.broker_epoch > 0
    leader.append(b"a", b"b")
    leader.append(b"c")
    leader.give(first)
    second = leader.next_fetch()
    assert second.token != first.token
    # durability=fsync: what it asks with at the end is on its disk.
    assert (second.offset, second.durable_offset, second.last_epoch) == (3, 3, 0)
    assert (second.last_crc, second.high_watermark) == (leader.log.last_crc, 3)
    directory = leader.follower.data_dir / f"{leader.topic_id.hex()}-0"
    (path,) = directory.glob("*.log")
    assert path.read_bytes() == leader.batches(0)


def test_an_answer_is_used_once(leader: HandLeader) -> None:
    """H6: the same answer again, or another one with its token, changes nothing."""
    fetch = leader.bring((b"a",), (b"b",))
    leader.append(b"c")
    leader.give(fetch)
    leader.give(fetch)
    leader.answer(fetch, diverged=internal.Diverged(leader_epoch=-1, end_offset=0))
    leader.answer(fetch, restart=internal.Restart(offset=0))
    after = leader.next_fetch()
    assert (after.offset, after.last_crc) == (3, leader.log.last_crc)
    assert (leader.held().log_start_offset, leader.held().log_end_offset) == (0, 3)
    leader.append(b"d")
    leader.give(after)
    assert leader.next_fetch().offset == 4


def test_an_answer_of_another_epoch(leader: HandLeader) -> None:
    """H4, H6: an answer that names another leader epoch than the fetch is not used; the right one still is."""
    fetch = leader.bring((b"a",))
    leader.append(b"b")
    leader.answer(fetch, leader_epoch=7, diverged=internal.Diverged(leader_epoch=-1, end_offset=0))
    leader.answer(fetch, token=fetch.token + 1, restart=internal.Restart(offset=0))
    leader.give(fetch)
    assert leader.next_fetch().offset == 2


def test_a_late_answer_after_a_new_epoch(leader: HandLeader) -> None:
    """H6: once the key names a new epoch, answers to fetches of the old one are not used."""
    late = leader.bring((b"a",), (b"b",))
    leader.lead_again()
    fetch = leader.next_fetch()
    assert (fetch.leader_epoch, fetch.offset, fetch.last_epoch) == (1, 2, 0)
    leader.answer(late, diverged=internal.Diverged(leader_epoch=-1, end_offset=0))
    leader.append(b"c")
    leader.give(fetch)
    after = leader.next_fetch()
    assert (after.offset, after.last_epoch) == (3, 1)


@pytest.mark.parametrize("what", ["rotten payload", "gap", "broken chain", "half a batch"])
def test_batches_that_fail_their_checks(leader: HandLeader, what: str) -> None:
    """I6, I17: nothing of them is appended; the follower says so with its next fetch, and takes sound ones then."""
    fetch = leader.bring((b"a",))
    leader.append(b"b" * 100)
    leader.append(b"c" * 100)
    data = bytearray(leader.batches(1))
    match what:
        case "rotten payload":
            data[100] ^= 1
        case "gap":
            data = bytearray(leader.batches(2))
        case "broken chain":
            data = bytearray(leader.batches(1) + leader.batches(1))
        case "half a batch":
            data = data[:-20]
    leader.answer(fetch, batches=bytes(data), high_watermark=3)
    after = leader.next_fetch()
    assert after.corruption_detected
    held = leader.held()
    assert held.log_end_offset == after.offset < 3
    assert held.high_watermark <= after.offset
    leader.give(after)
    sound = leader.next_fetch()
    assert (sound.offset, sound.last_crc, sound.corruption_detected) == (3, leader.log.last_crc, False)


def test_a_high_watermark_beyond_the_log(leader: HandLeader) -> None:
    """I8: what is visible at a follower is what it has."""
    fetch = leader.bring((b"a",))
    leader.answer(fetch, high_watermark=40, log_start_offset=40)
    leader.next_fetch()
    assert (leader.held().high_watermark, leader.held().log_end_offset) == (1, 1)


def test_a_fetch_is_retried_after_an_error(leader: HandLeader) -> None:
    """A refusal ends neither the stream nor the copying."""
    fetch = leader.bring((b"a",))
    leader.answer(fetch, error=to_detail(FencedLeaderEpochError("a moment")))
    again = leader.next_fetch()
    assert (again.offset, again.leader_epoch) == (1, 0)
    assert again.token > fetch.token


def test_logs_that_part_are_cut(leader: HandLeader) -> None:
    """H1, H2: uncommitted records go to the smaller of both ends of the common epoch; then it asks again."""
    first = leader.next_fetch()
    leader.append(b"a")
    leader.append(b"b")
    leader.append(b"c")
    leader.answer(first, batches=leader.batches(0), high_watermark=1)
    fetch = leader.next_fetch()
    assert fetch.offset == 3
    leader.log.truncate_to(1)
    leader.lead_again()
    leader.append(b"x")
    fetch = leader.next_fetch()
    assert (fetch.leader_epoch, fetch.offset, fetch.last_epoch) == (1, 3, 0)
    leader.answer(fetch, diverged=internal.Diverged(leader_epoch=0, end_offset=1))
    fetch = leader.next_fetch()
    assert (fetch.offset, fetch.durable_offset, fetch.last_epoch) == (1, 1, 0)
    leader.give(fetch)
    assert leader.next_fetch().last_crc == leader.log.last_crc


@pytest.mark.parametrize("decision", ["diverged", "restart"])
def test_committed_records_are_not_cut(leader: HandLeader, decision: str) -> None:
    """I18: a leader that asks to go back below the high watermark without an unclean election is not believed."""
    fetch = leader.bring((b"a",), (b"b",), (b"c",))
    if decision == "diverged":
        leader.answer(fetch, diverged=internal.Diverged(leader_epoch=0, end_offset=1))
    else:
        leader.answer(fetch, restart=internal.Restart(offset=1))
    until(lambda: leader.held().offline_reason, "the replica refuses to continue")
    assert "there was no unclean election" in leader.held().offline_reason
    directory = leader.follower.data_dir / f"{leader.topic_id.hex()}-0"
    (path,) = directory.glob("*.log")
    assert path.read_bytes() == leader.batches(0)


def test_an_unclean_election_explains_a_cut(leader: HandLeader) -> None:
    """H21: after an administrator's unclean election committed records that the new leader lacks go."""
    leader.bring((b"a",), (b"b",), (b"c",))
    leader.log.truncate_to(1)
    leader.lead_again(unclean=True)
    fetch = leader.next_fetch()
    leader.answer(fetch, diverged=internal.Diverged(leader_epoch=0, end_offset=1))
    leader.append(b"x")
    leader.give(leader.next_fetch())
    assert leader.next_fetch().last_crc == leader.log.last_crc
    assert leader.held().offline_reason == ""


def test_a_silent_leader_gets_a_new_stream(leader: HandLeader) -> None:
    """A stream on which nothing comes is given up, and made anew with its fetches."""
    fetch = leader.bring((b"a",))
    streams = len(leader.identities)
    leader.server.silent = True
    again = leader.next_fetch()
    leader.server.silent = False
    assert len(leader.identities) == streams + 1
    assert (again.offset, again.leader_epoch) == (fetch.offset, fetch.leader_epoch)
    assert again.token > fetch.token
    leader.append(b"b")
    leader.give(again)
    assert leader.next_fetch().offset == 2
