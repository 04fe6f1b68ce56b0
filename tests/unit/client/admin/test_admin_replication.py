"""What `Admin` asks about replicas and what it makes of the answers, with the servers' answers written by hand."""

import inspect

import grpc
import headrace.aio
import pytest
from headrace import TopicPartition
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import AdminOperations
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import execute
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import broker_pb2, cluster_pb2
from headrace.wire.errors import ConflictError, TransportError, UnknownBrokerError, UnknownTopicIdError, to_detail

from tests.fakes.failed_call import FailedCallError

MOVE = {TopicPartition("t", 1): (4, 2, 3)}
LOST = FailedCallError(grpc.StatusCode.UNAVAILABLE, "recvmsg: connection reset by peer")


class Servers:
    """Two coordinators and three brokers that answer from a table and keep what they were asked."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        self.operations = AdminOperations(
            build(AdminConfig, {"bootstrap_servers": "c:1,c:2"}), BootstrapClient(build(AdminConfig, {}))
        )

    def __call__(self, step):
        if step.method == "GetMetadata":
            brokers = [
                cluster_pb2.BrokerMetadata(broker_id=broker_id, address=f"b:{broker_id}") for broker_id in (1, 2, 3)
            ]
            return cluster_pb2.GetMetadataResponse(brokers=brokers, coordinators=["c:1", "c:2"])
        self.asked.append(step)
        answer = self.answers[step.method]
        answer = answer(step) if callable(answer) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, operation):
        return execute(operation, self)


@pytest.fixture
def servers():
    return Servers()


def test_a_refused_partition_is_reported_with_the_others(servers):
    """Moves go out by topic and partition; each result has its own error."""
    response = cluster_pb2.ReassignPartitionsResponse()
    response.partitions.add(name="t", partition=1, leader_id=2, leader_epoch=7, replicas=[4, 2, 3, 1])
    response.partitions.add(name="u", partition=0, leader_id=-1, error=to_detail(ConflictError("changed meanwhile")))
    servers.answers["ReassignPartitions"] = response
    moves = {**MOVE, TopicPartition("u", 0): [1]}
    moved, refused = servers.run(servers.operations.reassign_partitions(moves, 1000, validate_only=True, timeout=1))
    assert (moved.error, moved.leader_id, moved.leader_epoch, moved.replicas) == (None, 2, 7, (4, 2, 3, 1))
    assert (refused.topic, type(refused.error)) == ("u", ConflictError)
    (call,) = servers.asked
    assert (call.request.copy_bytes_per_second, call.request.validate_only) == (1000, True)
    assert [(p.topic.name, p.partition, list(p.replicas)) for p in call.request.partitions] == [
        ("t", 1, [4, 2, 3]),
        ("u", 0, [1]),
    ]


def test_nothing_to_do_sends_no_request(servers):
    """No partition is not the same as all partitions."""
    operation = servers.operations
    assert servers.run(operation.reassign_partitions({}, 0, validate_only=False, timeout=1)) == []
    assert servers.run(operation.cancel_reassignment([], validate_only=False, timeout=1)) == []
    assert servers.run(operation.list_reassignments([], timeout=1)) == []
    assert servers.run(operation.elect_leaders("preferred", [], None, validate_only=False, timeout=1)) == []
    assert servers.asked == []


def test_cancel_and_list(servers):
    """A cancel names no replicas; a listed move knows where it ends."""
    servers.answers["ReassignPartitions"] = cluster_pb2.ReassignPartitionsResponse()
    servers.run(servers.operations.cancel_reassignment([TopicPartition("t", 1)], validate_only=False, timeout=1))
    (asked,) = servers.asked[0].request.partitions
    assert (asked.cancel, list(asked.replicas)) == (True, [])
    response = cluster_pb2.ListReassignmentsResponse()
    response.partitions.add(name="t", partition=1, replicas=[4, 2, 1], adding=[4], removing=[1], leader_id=2)
    response.partitions.add(name="a", partition=9, replicas=[1])
    servers.answers["ListReassignments"] = response
    first, second = servers.run(servers.operations.list_reassignments(None, timeout=1))
    assert (first.topic, second.topic, second.target) == ("a", "t", (4, 2))


def test_partitions_of_one_topic_are_elected_together(servers):
    """A preferred election may name none, which is all; the broker is sent where it is given, 0 included."""
    servers.answers["ElectLeaders"] = cluster_pb2.ElectLeadersResponse()
    parts = [TopicPartition("t", 1), TopicPartition("u", 0), TopicPartition("t", 3)]
    servers.run(servers.operations.elect_leaders("preferred", None, None, validate_only=False, timeout=1))
    servers.run(servers.operations.elect_leaders("unclean", parts, 0, validate_only=False, timeout=1))
    everything, named = (call.request for call in servers.asked)
    assert (everything.type, list(everything.topics), everything.HasField("broker_id")) == (
        cluster_pb2.ELECTION_TYPE_PREFERRED,
        [],
        False,
    )
    assert [(entry.topic.name, list(entry.partitions)) for entry in named.topics] == [("t", [1, 3]), ("u", [0])]
    assert (named.type, named.HasField("broker_id")) == (cluster_pb2.ELECTION_TYPE_UNCLEAN, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda admin: admin.elect_leaders("best", None, None, validate_only=False, timeout=1),
        lambda admin: admin.elect_leaders("unclean", None, 1, validate_only=False, timeout=1),
        lambda admin: admin.elect_leaders("preferred", None, 1, validate_only=False, timeout=1),
        lambda admin: admin.reassign_partitions(MOVE, -1, validate_only=False, timeout=1),
        lambda admin: admin.reassign_partitions({TopicPartition("t", 0): []}, 0, validate_only=False, timeout=1),
    ],
)
def test_what_makes_no_sense_is_not_sent(servers, make):
    """A ConfigError before anything leaves."""
    with pytest.raises(ConfigError):
        servers.run(make(servers.operations))
    assert servers.asked == []


def test_only_an_unclean_election_is_not_repeated(servers):
    """Its second answer would be a refusal; the other changes end the same when sent twice."""
    lost = iter([LOST, LOST])
    servers.answers["ElectLeaders"] = lambda step: next(lost)
    with pytest.raises(TransportError):
        servers.run(
            servers.operations.elect_leaders("unclean", [TopicPartition("t", 0)], 1, validate_only=False, timeout=1)
        )
    assert len(servers.asked) == 1
    for method, response, operation in (
        ("ElectLeaders", cluster_pb2.ElectLeadersResponse(), servers.operations.elect_leaders),
        ("ReassignPartitions", cluster_pb2.ReassignPartitionsResponse(), servers.operations.reassign_partitions),
    ):
        answers = iter([LOST, response])
        servers.answers[method] = lambda step, answers=answers: next(answers)
        first = ("preferred", None, None) if method == "ElectLeaders" else (MOVE, 0)
        assert servers.run(operation(*first, validate_only=False, timeout=1)) == []


def test_drain_and_undrain(servers):
    """One request with two meanings."""
    servers.answers["DrainBroker"] = cluster_pb2.DrainBrokerResponse(leaders=3, unchanged=True)
    assert servers.run(servers.operations.drain_broker(2, drain=True, timeout=1)) == (3, True)
    servers.run(servers.operations.drain_broker(2, drain=False, timeout=1))
    assert [(call.request.broker_id, call.request.drain) for call in servers.asked] == [(2, True), (2, False)]


def logs_of(step):
    broker_id = int(step.address[2:])
    response = broker_pb2.DescribeLogsResponse(broker_id=broker_id, disk_total_bytes=100, disk_free_bytes=broker_id)
    log = response.logs.add(name="t", partition=0, log_end_offset=10 * broker_id, is_leader=broker_id == 2)
    log.is_follower = not log.is_leader
    if log.is_leader:
        log.followers.add(broker_id=3, log_end_offset=-1, behind_ms=70, phi=1.5)
        log.followers.add(broker_id=1, log_end_offset=10, durable_offset=9, in_sync=True)
    return response


def test_logs_of_all_brokers_or_of_some(servers):
    """Followers are listed by leader; a broker that is not registered is an error, not a gap."""
    servers.answers["DescribeLogs"] = logs_of
    logs = servers.run(servers.operations.describe_logs("t", None, 1))
    assert [(log.broker_id, log.is_leader, log.is_follower) for log in logs] == [
        (1, False, True),
        (2, True, False),
        (3, False, True),
    ]
    followers = logs[1].followers
    assert [(each.broker_id, each.log_end_offset, each.in_sync) for each in followers] == [
        (1, 10, True),
        (3, -1, False),
    ]
    assert (followers[0].durable_offset, followers[1].behind_ms, followers[1].phi) == (9, 70, 1.5)
    assert [log.broker_id for log in servers.run(servers.operations.describe_logs(None, [3], 1))] == [3]
    assert servers.run(servers.operations.describe_disks(None, 1)) == [(1, 100, 1), (2, 100, 2), (3, 100, 3)]
    with pytest.raises(UnknownBrokerError):
        servers.run(servers.operations.describe_logs("t", [9], 1))


def test_both_classes_have_the_same_methods():
    """The asyncio Admin takes what the blocking one takes."""
    for name, method in inspect.getmembers(Admin, inspect.isfunction):
        if not name.startswith("_"):
            twin = inspect.signature(getattr(headrace.aio.Admin, name)).parameters
            assert inspect.signature(method).parameters.keys() == twin.keys(), name


def test_records_are_deleted_in_the_topic_in_which_the_end_was_looked_up(servers):
    """The topic is created again between the look-up and the deletion: nothing of the new one is deleted."""
    ids = iter([b"o" * 16, b"n" * 16])

    def run_step(step):
        if step.method != "GetMetadata":
            return servers(step)
        answer = servers(step)
        topic = answer.topics.add(name="t", topic_id=next(ids))
        topic.partitions.add(partition=0, leader_id=1, leader_epoch=0)
        return answer

    offsets = broker_pb2.ListOffsetsResponse()
    offsets.topics.add(topic_id=b"o" * 16).partitions.add(partition=0, offset=100)
    servers.answers["ListOffsets"] = offsets
    with pytest.raises(UnknownTopicIdError, match="created again"):
        execute(servers.operations.delete_records("t", {0: -1}, 5.0), run_step)
    assert [step.method for step in servers.asked] == ["ListOffsets"]
