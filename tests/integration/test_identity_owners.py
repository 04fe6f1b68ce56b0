"""What belongs to users on a real cluster that requires identities: members of groups, and producer ids."""

import contextlib

import pytest
from headrace import (
    Admin,
    Consumer,
    DeliveryError,
    NotAuthorizedError,
    Producer,
    Reader,
    TopicPartition,
    UnknownMemberError,
)
from headrace.client.producer.sender import Sender
from headrace.v1 import groups_pb2, groups_pb2_grpc
from headrace.wire.errors import from_rpc_error
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until
from tests.integration.test_identity import Secured

TRANSPORTS = [pytest.param("native", marks=pytest.mark.native), "grpc"]


@pytest.fixture(scope="module")
def secured():
    """Two brokers, so that a leader can change, and two coordinators."""
    spec = LocalClusterSpec(
        brokers=2,
        coordinators=2,
        identity=True,
        coordinator_settings={"default_replication_factor": 2},
    )
    with LocalCluster(spec) as cluster:
        found = Secured(cluster)
        yield found
        found.close()


def test_the_member_of_another_user_is_none(secured):
    """Heartbeat, commit and departure by a user of the same group change nothing; others see no member id."""
    secured.admin.create_topic("shared")
    ada = secured.user("ada", ("reader", "topic:shared"), ("reader", "group:shared"), ("writer", "topic:shared"))
    bob = secured.user("bob", ("reader", "topic:shared"), ("reader", "group:shared"))
    stub = groups_pb2_grpc.GroupServiceStub(secured.channel)
    as_bob = {"timeout": 20, "metadata": (("authorization", f"Bearer {bob['api_key']}"),)}
    where = TopicPartition("shared", 0)
    with (
        Producer(**ada) as producer,
        Consumer("shared", group_id="shared", auto_offset_reset="earliest", **ada) as consumer,
        Admin(**bob) as others,
    ):
        producer.send("shared", b"1").result(timeout=30)
        assert next(iter(consumer)).value == b"1"
        consumer.commit()
        (member,) = secured.admin.describe_group("shared").members
        (shown,) = others.describe_group("shared").members
        assert (len(member.member_id), member.user) == (16, "ada")
        assert (shown.member_id, shown.user, shown.name) == (member.member_id[:4], "ada", member.name)
        for call, request in {
            stub.Heartbeat: groups_pb2.HeartbeatRequest(
                group_id="shared",
                member_id=member.member_id,
                member_epoch=member.member_epoch,
                topics=["shared"],
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                owned=groups_pb2.OwnedPartitions(),
            ),
            stub.CommitOffsets: groups_pb2.CommitOffsetsRequest(
                group_id="shared",
                member_id=member.member_id,
                member_epoch=member.member_epoch,
                topics=[groups_pb2.TopicOffsets(name="shared", partitions=[{"partition": 0, "offset": 0}])],
            ),
        }.items():
            with pytest.raises(UnknownMemberError), _typed():
                call(request, **as_bob)
        stub.LeaveGroup(groups_pb2.LeaveGroupRequest(group_id="shared", member_id=member.member_id), **as_bob)
        producer.send("shared", b"2").result(timeout=30)
        assert next(iter(consumer)).value == b"2"
        consumer.commit()
        described = secured.admin.describe_group("shared")
        assert [each.member_id for each in described.members] == [member.member_id]
        assert described.offsets[where].offset == 2


@contextlib.contextmanager
def _typed():
    try:
        yield
    except Exception as error:
        raise from_rpc_error(error) from None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_producer_id_of_another_user_is_refused(secured, transport, monkeypatch):
    """By each leader: also after the leader has changed and the former one has started again."""
    topic = f"numbered-{transport}"
    secured.admin.create_topic(topic, config={"min_insync_replicas": "1"})
    settings = [
        secured.user(f"{name}-{transport}", ("writer", f"topic:{topic}")) | {"transport": transport}
        for name in ("ada", "bob")
    ]
    drawn, take = [], Sender.take_identity

    def take_the_first(self, answer):
        """Let all producers have the id of the first one, each in the next epoch."""
        drawn.append(answer.producer_id)
        answer.producer_id, answer.producer_epoch = drawn[0], len(drawn)
        take(self, answer)

    monkeypatch.setattr(Sender, "take_identity", take_the_first)
    for number in (b"1", b"2", b"3"):
        with Producer(**settings[0]) as ada, pytest.raises(DeliveryError), Producer(**settings[1]) as bob:
            ada.send(topic, number).result(timeout=60)
            with pytest.raises(NotAuthorizedError, match="drawn for another user"):
                bob.send(topic, b"forged").result(timeout=60)
        # The other broker leads from now on; then, started again, the first one.
        leader = secured.cluster.brokers[secured.admin.describe_topic(topic).partitions[0].leader_id - 1]
        leader.stop()
        secured.cluster.restart(leader)
        until(lambda: len(secured.admin.describe_topic(topic).partitions[0].in_sync_replicas) == 2, "in sync")
    with Reader(topic, bootstrap_servers=secured.servers, api_key=secured.admin_key) as reader:
        assert [record.value for record in reader] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_creator_of_a_topic_owns_it_until_it_is_deleted(secured, transport):
    """It writes, reads and deletes the topic with no other grant; in the next topic of that name it has no right."""
    topic = f"own-{transport}"
    ada, bob = (
        secured.user(f"{name}-own-{transport}", ("create", f"topic:{topic}")) | {"transport": transport}
        for name in ("ada", "bob")
    )
    with Admin(**ada) as hers, Admin(**bob) as his:
        hers.create_topic(topic)
        with Producer(**ada) as producer:
            producer.send(topic, b"1").result(timeout=30)
        with Reader(topic, **ada) as reader:
            assert [record.value for record in reader] == [b"1"]
        with pytest.raises(NotAuthorizedError):
            his.delete_topic(topic)
        hers.delete_topic(topic)
        his.create_topic(topic)
        with pytest.raises(NotAuthorizedError):
            hers.describe_topic(topic)
        assert his.describe_topic(topic).name == topic
    (grant,) = [grant for grant in secured.admin.list_grants() if grant.role == "owner" and transport in grant.resource]
    assert grant.principal == f"bob-own-{transport}"
