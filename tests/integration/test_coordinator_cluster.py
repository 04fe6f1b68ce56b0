"""Coordinators as processes on a real etcd, with broker registrations put there by hand.

No broker runs: a registration is a key on a lease, and the controller needs no more to elect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import headrace
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import cluster_pb2, cluster_pb2_grpc, errors_pb2, groups_pb2, groups_pb2_grpc, topics_pb2
from headrace.wire.errors import (
    DeadlineRequiredError,
    InvalidRequestError,
    MetastoreUnavailableError,
    Outcome,
    from_rpc_error,
)
from headrace.wire.ids import OWN_PRODUCER_IDS
from headrace_devcluster import service
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.guarded_exec import guarded
from headrace_server.cluster_identity import read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, ModRevisionIs, Put
from headrace_server.partition_state import decode, encode, hand_over

from tests.integration.metastore import connected
from tests.integration.replicated import until

SECONDS = 30


def command(*arguments):
    """The command line of a coordinator that ends when the tests do, without a fork that runs Python: gRPC is here."""
    return guarded([sys.executable, "-m", "headrace_coordinator", *arguments])


class CoordinatorProcess:
    """One coordinator without a cluster."""

    def __init__(self, directory, name, etcd_endpoint, cluster, **settings):
        self.name = name
        self.log_file = directory / f"{name}.log"
        ready = directory / f"{name}-{secrets.token_hex(4)}.json"
        values = {
            "coordinator_id": name,
            "cluster": cluster,
            "etcd_endpoints": etcd_endpoint,
            "listen": "127.0.0.1:0",
            "lease_ttl_ms": 2_000,
            "ready_file": ready,
            **settings,
        }
        arguments = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        self.process = service.Child("headrace_coordinator", arguments, {}, self.log_file)
        until(lambda: ready.exists() or self.process.poll() is not None, "the ready file")
        assert ready.exists(), self.log()
        self.ready = json.loads(ready.read_text())
        self.address = self.ready["address"]
        self.channel = grpc.insecure_channel(self.address)
        self.stub = cluster_pb2_grpc.ClusterServiceStub(self.channel)

    def log(self):
        return self.log_file.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)
        self.channel.close()

    def stop(self):
        self.process.terminate()
        code = self.process.wait(SECONDS)
        self.channel.close()
        return code

    # Calls, each with a deadline.

    def create(self, *topics, validate_only=False, timeout_ms=0, timeout=SECONDS):
        request = cluster_pb2.CreateTopicsRequest(topics=topics, validate_only=validate_only, timeout_ms=timeout_ms)
        return list(self.stub.CreateTopics(request, timeout=timeout).topics)

    def delete(self, *references, **fields):
        return list(
            self.stub.DeleteTopics(cluster_pb2.DeleteTopicsRequest(topics=references, **fields), timeout=SECONDS).topics
        )

    def grow(self, name, total, **fields):
        request = cluster_pb2.CreatePartitionsRequest(topic=by_name(name), total_partitions=total, **fields)
        return self.stub.CreatePartitions(request, timeout=SECONDS)

    def alter(self, name, timeout=SECONDS, **fields):
        request = cluster_pb2.AlterConfigsRequest(topic=by_name(name), **fields)
        return self.stub.AlterConfigs(request, timeout=timeout).result

    def metadata(self, *names):
        request = cluster_pb2.GetMetadataRequest(topics=[by_name(name) for name in names])
        return self.stub.GetMetadata(request, timeout=SECONDS)

    def topic(self, name):
        (found,) = self.metadata(name).topics
        return found

    def configs(self, name):
        request = cluster_pb2.DescribeConfigsRequest(topics=[by_name(name)])
        (found,) = self.stub.DescribeConfigs(request, timeout=SECONDS).topics
        return {entry.name: entry for entry in found.configs}

    def describe(self):
        return self.stub.DescribeCluster(cluster_pb2.DescribeClusterRequest(), timeout=SECONDS)

    def dump(self, prefix=""):
        request = cluster_pb2.DumpMetadataRequest(prefix=prefix)
        return {found.key: found for found in self.stub.DumpMetadata(request, timeout=SECONDS)}

    def drain(self, broker_id, drain=True):
        request = cluster_pb2.DrainBrokerRequest(broker_id=broker_id, drain=drain)
        return self.stub.DrainBroker(request, timeout=SECONDS)

    def reassign(self, name, partition, replicas=(), **fields):
        wanted = cluster_pb2.PartitionReassignment(
            topic=by_name(name), partition=partition, replicas=replicas, **fields
        )
        request = cluster_pb2.ReassignPartitionsRequest(partitions=[wanted])
        return self.stub.ReassignPartitions(request, timeout=SECONDS).partitions

    def moves(self):
        return self.stub.ListReassignments(cluster_pb2.ListReassignmentsRequest(), timeout=SECONDS).partitions

    def elect(self, name):
        request = cluster_pb2.ElectLeadersRequest(
            type=cluster_pb2.ELECTION_TYPE_PREFERRED, topics=[cluster_pb2.TopicPartitions(topic=by_name(name))]
        )
        return self.stub.ElectLeaders(request, timeout=SECONDS).partitions

    def producer_id(self):
        return self.stub.InitProducerId(cluster_pb2.InitProducerIdRequest(), timeout=SECONDS).producer_id


def by_name(name):
    return topics_pb2.TopicRef(name=name)


def new_topic(name, partitions=0, **fields):
    return cluster_pb2.NewTopic(name=name, partitions=partitions, **fields)


class World:
    """A cluster name on an etcd, its coordinators, and broker registrations made by hand."""

    def __init__(self, etcd, directory):
        self.etcd = etcd
        self.directory = directory
        self.cluster = f"c{secrets.token_hex(4)}"
        self.coordinators = []

    def start(self, name, **settings):
        coordinator = CoordinatorProcess(self.directory, name, self.etcd.endpoint, self.cluster, **settings)
        self.coordinators.append(coordinator)
        return coordinator

    def close(self):
        for coordinator in self.coordinators:
            coordinator.kill()

    def in_etcd(self, act):
        """Run `act(metastore, keyspace)`."""

        async def run():
            async with connected(self.etcd.endpoint) as metastore:
                identity = await read_or_create(metastore, self.cluster, secrets.token_hex(8))
                return await act(metastore, identity.keyspace)

        return asyncio.run(run())

    def register(self, broker_id, **fields):
        """Begin a session of a broker; its epoch."""

        async def act(metastore, keyspace):
            live = metadata_pb2.BrokerLive(broker_id=broker_id, address=f"127.0.0.1:{7000 + broker_id}", **fields)
            key = keyspace.broker(broker_id)
            await metastore.txn([], [Delete(key)])
            return (await metastore.txn([], [Put(key, live.SerializeToString())])).revision

        return self.in_etcd(act)

    def unregister(self, broker_id):
        async def act(metastore, keyspace):
            await metastore.txn([], [Delete(keyspace.broker(broker_id))])

        self.in_etcd(act)

    def key_count(self, prefix):
        async def act(metastore, keyspace):
            return len((await metastore.range(keyspace.prefix + prefix)).key_values)

        return self.in_etcd(act)


@contextlib.contextmanager
def leaders_that_hand_over(world):
    """Play the leaders of all partitions while they are asked to hand over: the first successor leads."""
    stop = threading.Event()

    async def serve(metastore, keyspace):
        while not stop.is_set():
            for found in (await metastore.range(keyspace.prefix + "partitions/")).key_values:
                state = decode(found.value)
                if state.successors:
                    after = hand_over(state, state.successors[0], leaves=False)
                    await metastore.txn([ModRevisionIs(found.key, found.mod_revision)], [Put(found.key, encode(after))])
            await asyncio.sleep(0.01)

    with ThreadPoolExecutor(1) as executor:
        serving = executor.submit(world.in_etcd, serve)
        try:
            yield
        finally:
            stop.set()
            serving.result(SECONDS)


@pytest.fixture(scope="module")
def coordinator_etcd(tmp_path_factory):
    """One etcd for the tests that leave it running."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def pair(coordinator_etcd, tmp_path_factory):
    """Two coordinators and three brokers in two racks, shared by tests that use topics of their own."""
    world = World(coordinator_etcd, tmp_path_factory.mktemp("pair"))
    try:
        for broker_id in (1, 2, 3):
            world.register(broker_id, rack=f"r{broker_id % 2}")
        yield world, world.start("a"), world.start("b", max_request_partitions=500)
    finally:
        world.close()


@pytest.fixture
def world(coordinator_etcd, tmp_path):
    """A cluster of the test's own on the shared etcd."""
    found = World(coordinator_etcd, tmp_path)
    yield found
    found.close()


@pytest.fixture
def own_world(tmp_path):
    """A cluster on an etcd that the test may pause and stop."""
    with Etcd(tmp_path / "etcd") as etcd:
        found = World(etcd, tmp_path)
        yield found
        found.close()


def test_a_topic_is_created_seen_described_and_deleted(pair, topic_name):
    """What one coordinator answered, it shows at once; the other shows it soon; deleting leaves no key."""
    world, first, second = pair
    (created,) = first.create(new_topic(topic_name, 6, configs={"retention_ms": "1000"}))
    assert not created.HasField("error"), created
    assert (created.partitions, created.replication_factor, len(created.topic_id)) == (6, 3, 16)
    found = first.topic(topic_name)
    assert found.topic_id == created.topic_id
    assert sorted(partition.leader_id for partition in found.partitions) == [1, 1, 2, 2, 3, 3]
    assert all(partition.leader_epoch == 0 for partition in found.partitions)
    assert all(sorted(partition.in_sync_replicas) == [1, 2, 3] for partition in found.partitions)
    assert {partition.min_insync_replicas for partition in found.partitions} == {2}
    shown = first.configs(topic_name)["min_insync_replicas"]
    assert (shown.value, shown.default_value, shown.source) == ("2", "2", cluster_pb2.CONFIG_SOURCE_DEFAULT)
    until(lambda: second.topic(topic_name) == found, "the other coordinator's view")
    assert first.configs(topic_name)["retention_ms"].value == "1000"
    (deleted,) = second.delete(topics_pb2.TopicRef(topic_id=created.topic_id))
    assert (deleted.name, deleted.topic_id) == (topic_name, created.topic_id)
    assert second.topic(topic_name).error.code == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC
    assert world.key_count(f"partitions/{created.topic_id.hex()}/") == 0
    assert world.key_count(f"topic_ids/{created.topic_id.hex()}") == 0


def test_a_large_topic_is_created_grown_and_deleted(pair, topic_name):
    """More partitions than one transaction takes: visible as a whole, in both calls, and gone in one."""
    world, first, _ = pair
    (created,) = first.create(new_topic(topic_name, 300))
    assert not created.HasField("error"), created
    assert created.warnings == ["300 of 300 partitions have replicas that share a rack"]
    assert len(first.topic(topic_name).partitions) == 300
    grown = first.grow(topic_name, 600)
    assert not grown.result.HasField("error"), grown
    partitions = first.topic(topic_name).partitions
    assert [partition.partition for partition in partitions] == list(range(600))
    assert {number: sum(p.leader_id == number for p in partitions) for number in (1, 2, 3)} == {1: 200, 2: 200, 3: 200}
    first.delete(by_name(topic_name))
    assert world.key_count(f"partitions/{created.topic_id.hex()}/") == 0


def test_two_coordinators_race_for_one_name(pair, topic_name):
    """Of many creations of one name at two coordinators exactly one succeeds; the others say that it exists."""
    _, first, second = pair
    with ThreadPoolExecutor(12) as pool:
        for round_number in range(5):
            name = f"{topic_name}-{round_number}"
            answers = [
                future.result()[0]
                for future in [pool.submit((first, second)[n % 2].create, new_topic(name, 4)) for n in range(12)]
            ]
            winners = [answer for answer in answers if not answer.HasField("error")]
            assert len(winners) == 1
            assert {a.error.code for a in answers if a.HasField("error")} == {
                errors_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
            }
            assert first.topic(name).topic_id == winners[0].topic_id


def test_validate_only_changes_nothing(pair, topic_name):
    """Every change can be checked first: same errors, same placement, no write."""
    world, first, _ = pair
    before = world.key_count("")
    (checked,) = first.create(new_topic(topic_name, 3), validate_only=True)
    assert not checked.HasField("error")
    assert not checked.topic_id
    assert world.key_count("") == before
    first.create(new_topic(topic_name, 3))
    (taken,) = first.create(new_topic(topic_name, 3), validate_only=True)
    assert taken.error.code == errors_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
    shown = first.dump()
    assert not first.grow(topic_name, 9, validate_only=True).result.HasField("error")
    assert not first.alter(topic_name, set={"retention_ms": "5"}, validate_only=True).HasField("error")
    assert not first.delete(by_name(topic_name), validate_only=True)[0].HasField("error")
    assert first.dump() == shown


def test_settings_are_altered_described_and_unset(pair, topic_name):
    """Set, seen by both, unset again; a default that is named is no override."""
    _, first, second = pair
    first.create(new_topic(topic_name))
    assert not first.alter(topic_name, set={"durability": "async", "flush_ms": "200"}).HasField("error")
    entry = first.configs(topic_name)["flush_ms"]
    assert (entry.value, entry.source) == ("200", cluster_pb2.CONFIG_SOURCE_TOPIC)
    until(lambda: second.configs(topic_name)["durability"].value == "async", "the other view")
    assert not second.alter(topic_name, unset=["durability", "flush_ms"]).HasField("error")
    entry = second.configs(topic_name)["durability"]
    assert (entry.value, entry.source) == ("fsync", cluster_pb2.CONFIG_SOURCE_DEFAULT)
    assert entry.documentation


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (new_topic(""), "INVALID_TOPIC_NAME", "empty"),
        (new_topic("a/b"), "INVALID_TOPIC_NAME", "'/'"),
        (new_topic(".."), "INVALID_TOPIC_NAME", ".."),
        (new_topic("x" * 250), "INVALID_TOPIC_NAME", "250"),
        (new_topic("n", -1), "INVALID_PARTITIONS", "-1"),
        (new_topic("n", 10_001), "INVALID_PARTITIONS", "10000"),
        (new_topic("n", replication_factor=10), "INVALID_REPLICATION_FACTOR", "is above 9"),
        (new_topic("n", replication_factor=-2), "INVALID_REPLICATION_FACTOR", "-2"),
        (new_topic("n", configs={"retention": "5"}), "INVALID_CONFIG", "retention_ms"),
        (new_topic("n", configs={"retention_ms": "soon"}), "INVALID_CONFIG", "soon"),
        (new_topic("n", configs={"min_insync_replicas": "4"}), "INVALID_CONFIG", "replication factor 3"),
        (new_topic("n", configs={"flush_ms": "5"}), "INVALID_CONFIG", "durability"),
        (new_topic("n", assignments=[cluster_pb2.ReplicaList(broker_ids=[9])]), "UNKNOWN_BROKER", "broker 9"),
        (new_topic("n", assignments=[cluster_pb2.ReplicaList()]), "INVALID_REQUEST", "assignment 0"),
        (new_topic("n", 3, assignments=[cluster_pb2.ReplicaList(broker_ids=[1])]), "INVALID_REQUEST", "assigned"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isupper() else None,
)
def test_bad_topics_are_refused_one_by_one(pair, topic_name, topic, code, words):
    """A typed error with outcome and advice next to the valid topic of the same request, which is created."""
    _, first, _ = pair
    good, bad = first.create(new_topic(topic_name), topic)
    assert not good.HasField("error")
    assert errors_pb2.ErrorCode.Name(bad.error.code) == f"ERROR_CODE_{code}"
    assert bad.error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
    assert words in bad.error.message + bad.error.action
    assert bad.error.action


def test_bad_changes_are_refused(pair, topic_name):
    """Growing that shrinks, an unknown topic, an empty reference, settings that contradict: typed, not applied."""
    _, first, second = pair

    def code(answer):
        assert answer.error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
        return errors_pb2.ErrorCode.Name(answer.error.code).removeprefix("ERROR_CODE_")

    first.create(new_topic(topic_name, 3))
    assert code(first.grow(topic_name, 3).result) == "INVALID_PARTITIONS"
    assert code(second.grow(topic_name, 504).result) == "INVALID_PARTITIONS"
    assert code(first.grow("no-such-topic", 3).result) == "UNKNOWN_TOPIC"
    assert code(first.alter(topic_name)) == "INVALID_REQUEST"
    assert code(first.alter(topic_name, set={"retention_ms": "5"}, unset=["retention_ms"])) == "INVALID_CONFIG"
    assert code(first.alter(topic_name, unset=["retentoin_ms"])) == "INVALID_CONFIG"
    assert code(first.delete(topics_pb2.TopicRef())[0]) == "INVALID_REQUEST"
    assert code(first.delete(topics_pb2.TopicRef(topic_id=b"short"))[0]) == "INVALID_REQUEST"
    assert code(first.delete(topics_pb2.TopicRef(topic_id=bytes(16)))[0]) == "UNKNOWN_TOPIC_ID"
    assert code(first.delete(by_name("no-such-topic"))[0]) == "UNKNOWN_TOPIC"
    twice = first.create(new_topic(f"{topic_name}-2"), new_topic(f"{topic_name}-2"))
    assert code(twice[1]) == "INVALID_REQUEST"
    many = second.create(new_topic(f"{topic_name}-3", 501))
    assert code(many[0]) == "INVALID_PARTITIONS"


def test_calls_without_deadline_or_beyond_limits_are_refused(pair):
    """An absent deadline, too many topics, a huge client id: the call fails with a typed error."""
    _, first, _ = pair
    with pytest.raises(grpc.RpcError) as failure:
        first.stub.GetMetadata(cluster_pb2.GetMetadataRequest())
    assert isinstance(from_rpc_error(failure.value), DeadlineRequiredError)
    with pytest.raises(grpc.RpcError) as failure:
        list(first.stub.DumpMetadata(cluster_pb2.DumpMetadataRequest()))
    assert isinstance(from_rpc_error(failure.value), DeadlineRequiredError)
    for call in (
        lambda: first.create(*[new_topic(f"t{n}") for n in range(1_001)]),
        lambda: first.metadata(*["x"] * 1_001),
        lambda: first.stub.DescribeCluster(cluster_pb2.DescribeClusterRequest(client_id="x" * 257), timeout=SECONDS),
        lambda: first.create(new_topic("x"), timeout_ms=-1),
        lambda: first.dump("x" * 1_025),
    ):
        with pytest.raises(grpc.RpcError) as failure:
            call()
        assert isinstance(from_rpc_error(failure.value), InvalidRequestError)


def test_producer_ids_are_unique_across_coordinators(pair):
    """Ids are drawn: none twice from any coordinator, and none of the range for ids that producers choose."""
    _, first, second = pair
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit((first, second)[n % 2].producer_id) for n in range(200)]
        ids = [future.result() for future in futures]
    assert len(set(ids)) == 200
    assert min(ids) >= 0
    assert max(ids) < OWN_PRODUCER_IDS


def test_the_dump_decodes_every_key(pair, topic_name):
    """Values as JSON by the message of their key, and only what the prefix asks for."""
    world, first, _ = pair
    (created,) = first.create(new_topic(topic_name, 2))
    dumped = first.dump()
    topic = next(found for key, found in dumped.items() if key.endswith(f"topics/{topic_name}"))
    assert json.loads(topic.value_json)["partitions"] == 2
    state = json.loads(dumped[f"/headrace/{world.cluster}/1/partitions/{created.topic_id.hex()}/1"].value_json)
    assert sorted(state["replicas"]) == [1, 2, 3]
    assert f"/headrace/{world.cluster}/meta" in dumped
    assert not any("undecoded_hex" in found.value_json for found in dumped.values())
    assert dumped[f"/headrace/{world.cluster}/1/coordinators/a"].lease_id > 0
    assert all("/brokers/" in key for key in first.dump("brokers/"))


def test_the_dump_has_the_keys_of_groups(pair, topic_name):
    """They have a prefix of their own in etcd, last in a whole dump, and alone below `groups/`."""
    world, first, _ = pair
    (created,) = first.create(new_topic(topic_name, partitions=1))
    commit = groups_pb2.CommitOffsetsRequest(group_id=topic_name)
    commit.topics.add(topic_id=created.topic_id).partitions.add(partition=0, offset=0)
    groups_pb2_grpc.GroupServiceStub(first.channel).CommitOffsets(commit, timeout=SECONDS)
    prefix = f"/headrace/{world.cluster}/groups/1/group/{topic_name}"
    keys = {f"{prefix}/state", f"{prefix}/offsets/{created.topic_id.hex()}/0"}
    assert keys <= set(first.dump())
    assert set(first.dump(f"groups/group/{topic_name}")) == keys


def test_the_cluster_is_described_with_its_coordinators(pair):
    """One controller, both coordinators with their addresses, health and etcd's version; old etcd is warned of."""
    _, first, second = pair
    described = until(lambda: (d := first.describe()) and len(d.coordinators) == 2 and d, "both coordinators")
    assert [found.address for found in described.coordinators] == [first.address, second.address]
    assert described.controller_id in {"a", "b"}
    assert described.controller_epoch > 0
    assert [broker.broker_id for broker in described.brokers] == [1, 2, 3]
    assert set(first.metadata().coordinators) == {first.address, second.address}
    assert "coordinator_starts" in first.log()
    if described.etcd_version.startswith("3.5.1"):
        assert "good for one machine" in first.log()
    health = health_pb2_grpc.HealthStub(first.channel)
    for name in ("startup", "liveness", "readiness", ""):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_leaders_follow_sessions(world):
    """A session that ends leaves the partition without a leader; its clean successor leads in the next epochs."""
    coordinator = world.start("a")
    epoch = world.register(1)
    (created,) = coordinator.create(new_topic("t", 3))
    assert created.replication_factor == 1
    assert "1 replica in place of 3" in created.warnings[0]
    world.unregister(1)
    until(lambda: all(p.leader_id == -1 for p in coordinator.topic("t").partitions), "the loss of the leader")
    assert coordinator.describe().offline_partitions == 3
    world.register(1, resumes=epoch, clean=True)
    until(lambda: all(p.leader_id == 1 for p in coordinator.topic("t").partitions), "the election")
    assert {p.leader_epoch for p in coordinator.topic("t").partitions} == {2}


def test_leaders_and_replicas_move_by_the_word_of_any_coordinator(world):
    """Drained by one, moved by the other, undone by both: the controller does the rest."""
    for broker_id in (1, 2, 3, 4):
        world.register(broker_id)
    first, second = world.start("a"), world.start("b", leader_rebalance_interval_ms=100)
    with leaders_that_hand_over(world):
        first.create(new_topic("moved", assignments=[cluster_pb2.ReplicaList(broker_ids=[1, 2, 3])] * 5))
        assert first.drain(1).leaders > 0  # The controller may have begun to move them by then.
        until(lambda: {p.leader_id for p in second.topic("moved").partitions} == {2}, "leaders off the drained broker")
        assert all(len(p.in_sync_replicas) == 3 for p in second.topic("moved").partitions)
        assert second.drain(1, False).leaders == 0
        assert {answer.leader_id for answer in second.elect("moved")} == {1}
        (answer,) = first.reassign("moved", 0, [4, 1, 2])
        assert not answer.HasField("error")
        (move,) = first.moves()
        assert (list(move.adding), list(move.removing)) == ([4], [3])
        until(second.moves, "the other coordinator sees it")
        (refused,) = second.reassign("moved", 1, [4, 9])
        assert "broker 9" in refused.error.message
        (cancelled,) = second.reassign("moved", 0, cancel=True)
        assert sorted(cancelled.replicas) == [1, 2, 3]
        (removed,) = second.reassign("moved", 2, [1, 2])
        assert list(removed.replicas) == [1, 2, 3]
        until(lambda: list(first.topic("moved").partitions[2].replicas) == [1, 2], "the removed replica to go")
        partition = first.topic("moved").partitions[2]
        assert (partition.leader_id, list(partition.in_sync_replicas), partition.min_insync_replicas) == (1, [1, 2], 1)
        assert second.describe().under_replicated_partitions == 0
        world.unregister(3)
        until(lambda: second.describe().under_replicated_partitions == 4, "the dead to leave the in-sync sets")


def test_a_broker_that_is_gone_with_its_replicas_is_counted(world):
    """By the controller alone, and no more once it is back: an alert needs no target of the broker's."""
    coordinator = world.start("a", metrics_listen="127.0.0.1:0")

    def metric(name):
        with urllib.request.urlopen(
            f"http://{coordinator.ready['metrics_address']}/metrics", timeout=SECONDS
        ) as answer:
            found = re.search(rf"^headrace_coordinator_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1])

    for broker_id in (1, 2, 3):
        world.register(broker_id)
    coordinator.create(new_topic("held", assignments=[cluster_pb2.ReplicaList(broker_ids=[1, 2])]))
    until(lambda: metric("partitions") == 1, "the topic")
    assert metric("missing_brokers") == 0
    world.unregister(3)
    world.unregister(2)
    until(lambda: metric("missing_brokers") == 1, "the gone broker to be counted")
    assert "brokers_missing" in coordinator.log()
    assert metric("etcd_db_quota_bytes") >= 2 << 30
    world.register(2)
    until(lambda: metric("missing_brokers") == 0, "its return")


def test_of_two_coordinators_behind_one_address_only_the_answering_one_is_reported(world):
    """As behind a Service: the other one is named with who answered in its place, and its log level stays."""
    first = world.start("a")
    second = world.start("b", advertised_address=first.address)
    with headrace.Admin(bootstrap_servers=first.address) as admin:
        found = {each.name: each for each in admin.describe_processes(timeout=SECONDS)}
        assert (found["coordinator-a"].error, found["coordinator-a"].log_level) == ("", "info")
        assert found["coordinator-b"].answered_by == "coordinator-a"
        (refused,) = admin.set_log_level("debug", servers=["coordinator-b"], timeout=SECONDS)
        assert refused.error == f"coordinator-a responds at its address {first.address}; nothing was changed"
        changed = admin.set_log_level("error", timeout=SECONDS)
        assert [(each.name, each.error == "") for each in changed] == [
            ("coordinator-a", True),
            ("coordinator-b", False),
        ]
    with headrace.Admin(bootstrap_servers=second.address) as admin:
        assert admin.describe_processes(timeout=SECONDS)[0].log_level == "error"


def test_without_brokers_nothing_is_created_and_the_error_says_when_to_retry(world):
    """NOT_ENOUGH_BROKERS is retriable and definite; with a broker the same request succeeds."""
    coordinator = world.start("a")
    (refused,) = coordinator.create(new_topic("t"))
    assert refused.error.code == errors_pb2.ERROR_CODE_NOT_ENOUGH_BROKERS
    assert refused.error.retriable
    assert refused.error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
    world.register(1)
    until(lambda: coordinator.metadata().brokers, "the broker")
    assert not coordinator.create(new_topic("t"))[0].HasField("error")


def test_the_other_coordinator_takes_over_from_a_killed_controller(world):
    """kill -9 of the controller: within the lease's time to live and a little the other one elects."""
    first, second = world.start("a"), world.start("b")
    by_id = {"a": first, "b": second}
    epoch = world.register(1)
    assert not first.create(new_topic("t", 2))[0].HasField("error")
    before = until(lambda: (d := second.describe()).controller_id and d, "a controller")
    victim = by_id.pop(before.controller_id)
    (survivor,) = by_id.values()
    world.unregister(1)
    until(lambda: survivor.describe().offline_partitions == 2, "the loss of the leaders")
    victim.kill()
    world.register(1, resumes=epoch, clean=True)
    until(lambda: survivor.describe().offline_partitions == 0, "the elections by the survivor")
    after = survivor.describe()
    assert after.controller_id == survivor.name
    assert after.controller_epoch > before.controller_epoch
    until(lambda: len(survivor.describe().coordinators) == 1, "the end of the victim's registration")


def test_a_stopped_controller_hands_over_at_once(world):
    """An orderly stop gives the lease back: the other one does not wait for it to expire; exit code 0."""
    first = world.start("a", lease_ttl_ms=60_000)
    until(lambda: first.describe().controller_id == "a", "the first controller")
    second = world.start("b", lease_ttl_ms=60_000)
    assert first.stop() == 0
    until(lambda: second.describe().controller_id == "b", "the second controller")


def test_remains_of_a_half_created_topic_are_cleared(world):
    """A reserved id and invisible partitions of a dead coordinator vanish after the grace time; visible topics stay."""
    coordinator = world.start("a", orphan_grace_ms=400)
    world.register(1)
    until(lambda: coordinator.metadata().brokers, "the broker")
    (created,) = coordinator.create(new_topic("t", 2))

    async def leave_remains(metastore, keyspace):
        half = metadata_pb2.Topic(name="half", topic_id=bytes(range(16)), replication_factor=1)
        await metastore.txn(
            [],
            [
                Put(keyspace.topic_by_id(half.topic_id), half.SerializeToString()),
                Put(keyspace.partition(half.topic_id, 0), b""),
                Put(keyspace.partition(bytes(16), 0), b""),
                Put(keyspace.deleted_topic(bytes(16)), b""),
                Put(keyspace.partition(created.topic_id, 2), b""),
            ],
        )

    world.in_etcd(leave_remains)
    until(lambda: world.key_count("partitions/") == 2, "the end of the invisible partitions")
    until(lambda: world.key_count("topic_ids/") == 1, "the end of the unnamed topic")
    assert len(coordinator.topic("t").partitions) == 2
    assert not coordinator.grow("t", 3).result.HasField("error")


def test_an_outage_of_etcd_is_survived(own_world):
    """Reads succeed with a growing age, writes report their outcome, and the coordinator recovers by itself."""
    coordinator = own_world.start("a")
    own_world.register(1)
    until(lambda: coordinator.metadata().brokers, "the broker")
    coordinator.create(new_topic("t", 2))
    own_world.etcd.pause()
    with pytest.raises(grpc.RpcError) as failure:
        coordinator.create(new_topic("u"), timeout=3)
    refused = from_rpc_error(failure.value)
    assert isinstance(refused, MetastoreUnavailableError)
    assert (refused.outcome, refused.retriable) == (Outcome.NOT_APPLIED, True)
    changed = coordinator.alter("t", set={"retention_ms": "5"}, timeout=2)
    assert changed.error.code == errors_pb2.ERROR_CODE_METASTORE_UNAVAILABLE
    assert changed.error.outcome == errors_pb2.OUTCOME_NOT_APPLIED
    answer = coordinator.metadata("t")
    assert len(answer.topics[0].partitions) == 2
    assert answer.age_ms > 1_000
    assert coordinator.producer_id() >= 0
    own_world.etcd.resume()
    until(lambda: coordinator.metadata().age_ms < 5_500 and coordinator.describe().controller_id, "the recovery")

    def created():
        with contextlib.suppress(grpc.RpcError):
            (answer,) = coordinator.create(new_topic("u"), timeout=5)
            return not answer.HasField("error") or answer.error.code == errors_pb2.ERROR_CODE_TOPIC_ALREADY_EXISTS
        return False

    until(created, "a topic after the outage")
    until(lambda: coordinator.describe().coordinators, "the registration after the outage")


def test_a_coordinator_waits_for_etcd_and_stops_while_waiting(tmp_path):
    """Without etcd it neither fails nor serves; SIGTERM ends it cleanly."""
    etcd = Etcd(tmp_path / "etcd")
    etcd.start()
    endpoint = etcd.endpoint
    etcd.stop()
    process = subprocess.Popen(
        command("--set", "coordinator_id=a", "--set", f"etcd_endpoints={endpoint}"), stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stderr.readline()
        assert "etcd_not_reached" in line
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_bad_settings_are_one_line_and_exit_code_2():
    """The process does not start, and says which setting is wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace_coordinator", "--set", "coordinator_idd=a"],
        check=False, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean coordinator_id" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_said_so(coordinator_etcd, tmp_path):
    """The address is named, the exit code is that of bad settings."""
    world = World(coordinator_etcd, tmp_path)
    try:
        first = world.start("a")
        done = subprocess.run(
            [
                sys.executable, "-m", "headrace_coordinator", "--set", "coordinator_id=b",
                "--set", f"etcd_endpoints={coordinator_etcd.endpoint}", "--set", f"cluster={world.cluster}",
                "--set", f"listen={first.address}",
            ],
            check=False, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    finally:
        world.close()
    assert done.returncode == 2
    assert first.address in done.stderr
