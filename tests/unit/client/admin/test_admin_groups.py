"""What `Admin` asks about consumer groups and what it makes of the answers, with the servers' answers by hand."""

import grpc
import pytest
from headrace import TopicPartition
from headrace.client.admin import group_operations
from headrace.client.admin import groups as admin_groups
from headrace.client.admin.group_operations import AdminGroupOperations
from headrace.client.admin.operations import AdminOperations
from headrace.client.admin.record_times import timestamp_of
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Pause, execute
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.group_routing import coordinators_for
from headrace.v1 import broker_pb2, cluster_pb2, errors_pb2, groups_pb2
from headrace.wire.batch import read_header, stamp
from headrace.wire.encoding import encode_batch
from headrace.wire.errors import (
    STATUS_DETAILS_KEY,
    GroupNotEmptyError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    TransportError,
    UnknownGroupError,
    to_detail,
)

from tests.fakes.failed_call import FailedCallError

COORDINATORS = ["c:1", "c:2", "c:3"]
TOPIC_ID = b"t" * 16
NOW_MS = 1_700_000_100_000


def refused(error):
    """A call that ends with a typed error, as coordinators end it."""
    status = errors_pb2.Status(code=9, message=str(error))
    status.details.add().Pack(to_detail(error))

    class Refused(FailedCallError):
        def trailing_metadata(self):
            return ((STATUS_DETAILS_KEY, status.SerializeToString()),)

    return Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error))


REFUSED = FailedCallError(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
LOST = FailedCallError(grpc.StatusCode.UNAVAILABLE, "recvmsg: connection reset by peer")


class Servers:
    """Three coordinators, and a broker that leads `leaders` of topic t; answers from a table, keeps what was asked."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        self.down = set()
        self.topic_id = TOPIC_ID
        self.leaders = [1, 1, 1, 1]
        self.bounds = {}
        self.batches = {}
        self.room = 10
        self.errors = {}
        config = build(AdminConfig, {"bootstrap_servers": "c:1", "request_timeout_ms": 200, "retry_backoff_ms": 1})
        calls = BootstrapClient(config)
        self.operations = AdminGroupOperations(config, calls, AdminOperations(config, calls))

    def __call__(self, step):
        if isinstance(step, Pause):
            return None
        if step.method == "GetMetadata":
            return self.metadata(step.request)
        self.asked.append(step)
        if step.address in self.down:
            raise REFUSED
        if step.service == "broker":
            return getattr(self, step.method)(step.request)
        answer = self.answers[step.method]
        answer = answer(step) if callable(answer) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def metadata(self, request):
        answer = cluster_pb2.GetMetadataResponse(coordinators=COORDINATORS)
        answer.brokers.add(broker_id=1, address="b:1")
        for asked in request.topics:
            if asked.name != "t":
                answer.topics.add(name=asked.name, error=to_detail(UnknownGroupError("no such topic")))
                continue
            topic = answer.topics.add(name="t", topic_id=self.topic_id)
            for number, leader in enumerate(self.leaders):
                topic.partitions.add(partition=number, leader_id=leader, leader_epoch=3)
        return answer

    def ListOffsets(self, request):
        answer = broker_pb2.ListOffsetsResponse()
        topic = answer.topics.add(name="t")
        for asked in request.topics[0].partitions:
            start, end = self.bounds[asked.partition]
            earliest = asked.spec == broker_pb2.OFFSET_SPEC_EARLIEST
            result = topic.partitions.add(partition=asked.partition, offset=start if earliest else end)
            if asked.partition in self.errors:
                result.error.CopyFrom(to_detail(self.errors[asked.partition]))
        return answer

    def Fetch(self, request):
        answer = broker_pb2.FetchResponse()
        topic = answer.topics.add(name="t")
        for index, asked in enumerate(request.topics[0].partitions):
            assert asked.max_bytes == 1, "one batch is enough"
            data = self.batches[asked.partition] if index < self.room else b""
            topic.partitions.add(partition=asked.partition, batches=data)
        return answer

    def run(self, operation):
        return execute(operation, self)


@pytest.fixture
def servers(monkeypatch):
    monkeypatch.setattr(group_operations.time, "time_ns", lambda: NOW_MS * 1_000_000)
    return Servers()


def batch(base_offset, times):
    one = len(set(times)) == 1
    data = encode_batch([b"v"] * len(times), base_timestamp_ms=times[0], timestamps_ms=None if one else list(times))
    head = stamp(read_header(data), base_offset=base_offset, append_timestamp_ms=0, leader_epoch=3, previous_crc=0)
    return head + data[len(head) :]


def described(*, offsets=(), owned=(), unowned=(), topic_id=TOPIC_ID):
    answer = groups_pb2.DescribeGroupResponse(group_epoch=9, assignment_epoch=8, revision=77)
    answer.listing.group_id = "g"
    answer.listing.state = groups_pb2.GROUP_STATE_STABLE
    if offsets:
        topic = answer.offsets.add(topic_id=topic_id, name="t")
        for partition, offset in offsets:
            topic.partitions.add(partition=partition, offset=offset, leader_epoch=-1, committed_ms=5)
    if owned:
        member = answer.members.add(member_id=b"m" * 16, instance_id="i1", host="h", member_epoch=8, live=True)
        member.owned.add(
            topic_id=topic_id, name="t", partitions=[p for p, _ in owned], assignment_epochs=[e for _, e in owned]
        )
    if unowned:
        answer.unowned.add(topic_id=topic_id, name="t", partitions=list(unowned))
    return answer


def sent(call):
    """The offsets of a request."""
    return [(topic.name, [(each.partition, each.offset) for each in topic.partitions]) for topic in call.request.topics]


def test_all_ask_the_same_coordinator_first_and_groups_are_spread():
    """The order is a function of group and addresses alone; a coordinator that goes moves only its own groups."""
    firsts = {f"g{n}": coordinators_for(f"g{n}", COORDINATORS)[0] for n in range(60)}
    assert {coordinators_for(group, reversed(COORDINATORS))[0] for group in firsts} == set(COORDINATORS)
    for group, first in firsts.items():
        assert sorted(coordinators_for(group, COORDINATORS)) == COORDINATORS
        left = [address for address in COORDINATORS if address != "c:2"]
        if first != "c:2":
            assert coordinators_for(group, left)[0] == first


def test_another_coordinator_answers_where_the_first_is_down(servers):
    """The order of the group decides; an error that a coordinator answers is not asked for elsewhere."""
    first, second, _ = coordinators_for("g", COORDINATORS)
    servers.down = {first}
    servers.answers["DescribeGroup"] = described(unowned=[0])
    assert servers.run(servers.operations.describe_group("g", None)).listing.group_id == "g"
    assert [(call.address, call.service) for call in servers.asked] == [(first, "groups"), (second, "groups")]
    assert servers.asked[-1].request.client_id


def test_a_description_shows_owners_and_since_when(servers):
    """Owned partitions carry their assignment epoch; offsets, owned and unowned partitions are the group's."""
    answer = described(offsets=[(3, 30), (0, 7)], owned=[(0, 5), (1, 8)], unowned=[2])
    answer.members[0].target.add(topic_id=TOPIC_ID, name="t", partitions=[0, 1])
    servers.answers["DescribeGroup"] = answer
    found = servers.run(servers.operations.describe_group("g", None))
    (member,) = found.members
    assert (member.name, member.host, member.live) == ("i1", "h", True)
    assert member.owned == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 8}
    assert member.target == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert found.owners[TopicPartition("t", 1)] is member
    assert found.unowned == (TopicPartition("t", 2),)
    assert found.partitions == [TopicPartition("t", n) for n in range(4)]
    assert found.offsets[TopicPartition("t", 0)] == (7, -1, "", 5, TOPIC_ID)
    assert (found.listing.state, found.group_epoch, found.assignment_epoch, found.revision) == ("stable", 9, 8, 77)
    assert found.topic_ids == {"t": TOPIC_ID}


def test_two_topics_of_one_name_are_not_mixed_up(servers):
    """What is left of a deleted topic goes by its id; its offsets do not hide those of the topic that is there."""
    answer = described(offsets=[(0, 7)])
    for name, topic_id in (("t", b"u" * 16), ("", b"w" * 16)):
        answer.offsets.add(topic_id=topic_id, name=name).partitions.add(partition=0, offset=90)
    servers.answers["DescribeGroup"] = answer
    found = servers.run(servers.operations.describe_group("g", None))
    assert {where.topic: each.offset for where, each in found.offsets.items()} == {
        "t": 7,
        (b"u" * 16).hex(): 90,
        (b"w" * 16).hex(): 90,
    }


def test_a_member_without_a_place_goes_by_its_id(servers):
    """Eight hex digits tell members apart for a person; the whole id is there."""
    answer = described(owned=[(0, 1)])
    answer.members[0].instance_id = ""
    servers.answers["DescribeGroup"] = answer
    (member,) = servers.run(servers.operations.describe_group("g", None)).members
    assert (member.name, member.member_id) == ("6d6d6d6d", b"m" * 16)


def test_groups_are_listed_by_id(servers):
    """States by name, one that is newer than this client too."""
    answer = groups_pb2.ListGroupsResponse()
    for group_id, state in (("z", 1), ("b", 2), ("c", 3), ("d", 99)):
        answer.groups.add(group_id=group_id, state=state, members=2, partitions=3, assignor="uniform", empty_since_ms=1)
    servers.answers["ListGroups"] = answer
    found = servers.run(servers.operations.list_groups(None))
    assert [(each.group_id, each.state) for each in found] == [
        ("b", "rebalancing"),
        ("c", "stable"),
        ("d", "unknown"),
        ("z", "empty"),
    ]


def test_a_reset_goes_in_parts_and_tells_each_partition(servers, monkeypatch):
    """Sorted, a bounded number in each request; refused ones are reported with the others; -1 removes."""
    monkeypatch.setattr(admin_groups, "MAX_COMMIT_PARTITIONS", 2)

    def commit(step):
        answer = groups_pb2.CommitOffsetsResponse()
        for topic in step.request.topics:
            result = answer.topics.add(name=topic.name)
            for each in topic.partitions:
                place = result.partitions.add(partition=each.partition, offset=each.offset)
                if topic.name == "u":
                    place.error.CopyFrom(to_detail(UnknownGroupError("no such topic")))
        return answer

    servers.answers["CommitOffsets"] = commit
    offsets = {TopicPartition("u", 0): 4, TopicPartition("t", 1): -1, TopicPartition("t", 0): 3}
    results = servers.run(servers.operations.reset_group_offsets("g", offsets, None))
    assert [(each.topic, each.partition, each.offset, type(each.error)) for each in results] == [
        ("t", 0, 3, type(None)),
        ("t", 1, -1, type(None)),
        ("u", 0, 4, UnknownGroupError),
    ]
    sent = [
        [(t.name, [(p.partition, p.offset) for p in t.partitions]) for t in c.request.topics] for c in servers.asked
    ]
    assert sent == [[("t", [(0, 3), (1, -1)])], [("u", [(0, 4)])]]
    assert all(call.request.member_id == b"" and call.request.group_id == "g" for call in servers.asked)


def test_a_live_group_is_not_reset_and_nonsense_is_not_sent(servers):
    """The coordinator's refusal is the caller's error; an offset below -1 never leaves."""
    servers.answers["CommitOffsets"] = refused(GroupNotEmptyError("group g has 2 members"))
    with pytest.raises(GroupNotEmptyError):
        servers.run(servers.operations.reset_group_offsets("g", {TopicPartition("t", 0): 1}, None))
    servers.asked.clear()
    with pytest.raises(ConfigError, match="-2 is negative"):
        servers.run(servers.operations.reset_group_offsets("g", {TopicPartition("t", 0): -2}, None))
    assert servers.asked == []


def test_a_reset_sends_the_epoch_at_which_it_saw_the_group(servers):
    """Where it is asked to, and zero is an epoch: there was no such group."""
    servers.answers["CommitOffsets"] = groups_pb2.CommitOffsetsResponse()
    servers.answers["DeleteGroups"] = groups_pb2.DeleteGroupsResponse()
    for epoch in (None, 0, 7):
        servers.run(servers.operations.reset_group_offsets("g", {TopicPartition("t", 0): 1}, None, epoch))
    servers.run(servers.operations.delete_groups(["g", "h"], None, {"h": 3}))
    *resets, first, second = [call.request for call in servers.asked]
    assert [r.HasField("expected_group_epoch") and r.expected_group_epoch for r in resets] == [False, 0, 7]
    assert (dict(first.expected_group_epochs), dict(second.expected_group_epochs)) == ({}, {"h": 3})


def test_the_requests_of_a_reset_have_one_number(servers, monkeypatch):
    """Another one in each call, and none without an expected epoch."""
    monkeypatch.setattr(admin_groups, "MAX_COMMIT_PARTITIONS", 2)
    servers.answers["CommitOffsets"] = groups_pb2.CommitOffsetsResponse()
    offsets = {TopicPartition("t", number): 1 for number in range(4)}
    for epoch in (None, 0, 0):
        servers.run(servers.operations.reset_group_offsets("g", offsets, None, epoch))
    numbers = [call.request.commit_number for call in servers.asked]
    assert (numbers[:2], len({0, *numbers}), numbers[2::2]) == ([0, 0], 3, numbers[3::2])


def test_a_call_without_an_answer_is_retried_but_for_a_deletion(servers):
    """A reset is the same twice; a second deletion would say that there is no such group."""
    lose = {coordinators_for("g", COORDINATORS)[0]}

    def answer(step):
        return LOST if step.address in lose else groups_pb2.CommitOffsetsResponse()

    servers.answers["CommitOffsets"] = servers.answers["DeleteGroups"] = answer
    assert servers.run(servers.operations.reset_group_offsets("g", {TopicPartition("t", 0): 1}, None)) == []
    servers.asked.clear()
    with pytest.raises(TransportError):
        servers.run(servers.operations.delete_groups(["g"], None))
    assert len(servers.asked) == 1


def test_deletions_are_reported_one_by_one(servers):
    """A group that is refused hinders no other; nor does a call that fails after others were done."""

    def delete(step):
        (group,) = step.request.group_ids
        if group == "cut":
            return LOST
        answer = groups_pb2.DeleteGroupsResponse()
        result = answer.groups.add(group_id=group)
        if group == "live":
            result.error.CopyFrom(to_detail(GroupNotEmptyError("it has members")))
        return answer

    servers.answers["DeleteGroups"] = delete
    results = servers.run(servers.operations.delete_groups(["live", "old", "cut", "older"], None))
    assert [(each.group_id, type(each.error)) for each in results] == [
        ("live", GroupNotEmptyError),
        ("old", type(None)),
        ("cut", TransportError),
        ("older", type(None)),
    ]


def test_lag_is_exact_in_records_and_by_the_first_unread_record_in_time(servers):
    """Behind, level, ahead of the end, below the log start, without an offset: each is what it is."""
    servers.leaders = [1] * 5
    servers.bounds = {0: (0, 10), 1: (0, 10), 2: (0, 10), 3: (5, 10), 4: (0, 10)}
    servers.batches = {0: batch(6, [1_000, 1_000, 2_000, 3_000]), 3: batch(5, [NOW_MS + 5_000])}
    servers.answers["DescribeGroup"] = described(offsets=[(0, 8), (1, 10), (2, 12), (3, 2)], unowned=[4])
    lags = servers.run(servers.operations.group_lag("g", times=True, timeout=None))
    assert [(each.records, each.behind_ms, each.missed_records, each.problem) for each in lags] == [
        (2, NOW_MS - 2_000, 0, ""),
        (0, 0, 0, ""),
        (0, 0, 0, ""),
        (5, 0, 3, ""),  # From the log's start on; a timestamp of the future is no negative age.
        (None, None, 0, ""),
    ]
    assert (lags[4].committed_offset, lags[4].end_offset) == (-1, 10)
    fetched = [call.request.topics[0].partitions for call in servers.asked if call.method == "Fetch"]
    assert [(each.partition, each.offset) for parts in fetched for each in parts] == [(0, 8), (3, 5)]


def test_lag_without_times_fetches_nothing(servers):
    """The description may be given, which saves a call; records are known, ages not."""
    servers.bounds = {0: (0, 10)}
    description = admin_groups.description(described(offsets=[(0, 8)]))
    (lag,) = servers.run(servers.operations.group_lag(description, times=False, timeout=None))
    assert (lag.records, lag.behind_ms) == (2, None)
    assert {call.method for call in servers.asked} == {"ListOffsets"}


def test_what_cannot_be_learnt_of_a_partition_hides_no_other(servers):
    """No leader, no topic, another topic of the name, an error of the leader: a problem each."""
    servers.leaders = [1, -1]
    servers.bounds = {0: (0, 10)}
    answer = described(offsets=[(0, 10), (1, 5)])
    answer.offsets.add(topic_id=b"g" * 16, name="gone").partitions.add(partition=0, offset=3)
    servers.answers["DescribeGroup"] = answer
    lags = servers.run(servers.operations.group_lag("g", times=True, timeout=None))
    assert [(each.topic, each.partition, each.records, each.problem) for each in lags] == [
        ("gone", 0, None, "there is no such topic now"),
        ("t", 0, 0, ""),
        ("t", 1, None, "the partition has no leader now"),
    ]
    servers.topic_id = b"n" * 16
    lags = servers.run(servers.operations.group_lag("g", times=True, timeout=None))
    assert {each.problem for each in lags if each.topic == "t"} == {"the topic was deleted and created again"}
    servers.topic_id = TOPIC_ID
    servers.errors = {0: OffsetOutOfRangeError("gone")}
    lag = servers.run(servers.operations.group_lag("g", times=True, timeout=None))[1]
    assert (lag.records, "gone" in lag.problem) == (None, True)
    servers.errors = {0: LeaderNotAvailableError("not now")}
    lag = servers.run(servers.operations.group_lag("g", times=True, timeout=0.01))[1]
    assert "not now" in lag.problem


def test_partitions_that_do_not_fit_into_an_answer_are_requested_again(servers):
    """And one whose record is gone meanwhile ends the asking."""
    servers.bounds = dict.fromkeys(range(4), (0, 10))
    servers.batches = {n: batch(0, [1_000 * (n + 1)] * 10) for n in range(4)} | {3: b""}
    servers.room = 2
    servers.answers["DescribeGroup"] = described(offsets=[(n, 0) for n in range(4)])
    lags = servers.run(servers.operations.group_lag("g", times=True, timeout=None))
    assert [each.behind_ms for each in lags] == [NOW_MS - 1_000, NOW_MS - 2_000, NOW_MS - 3_000, None]
    assert len([call for call in servers.asked if call.method == "Fetch"]) == 3


def test_a_batch_that_cannot_be_read_has_no_time():
    """Corrupt, cut, or all of it before the offset; the record itself and not its batch's first one counts."""
    good = batch(100, [5, 6, 7])
    assert [timestamp_of(good, offset) for offset in (99, 100, 102, 103)] == [5, 5, 7, None]
    assert timestamp_of(batch(90, [1] * 10) + good, 101) == 6
    assert timestamp_of(good[:-9], 100) is None
    assert timestamp_of(good[:90] + b"\xff" + good[91:], 100) is None


def test_what_is_read_is_as_new_as_what_was_changed(servers):
    """Each change's revision goes with the reads after it, whichever coordinator answers them."""
    servers.answers |= {
        "CommitOffsets": groups_pb2.CommitOffsetsResponse(revision=9),
        "DeleteGroups": groups_pb2.DeleteGroupsResponse(revision=7),
        "ListGroups": groups_pb2.ListGroupsResponse(),
        "DescribeGroup": described(unowned=[0]),
        "FetchOffsets": groups_pb2.FetchOffsetsResponse(),
    }

    def asked_for():
        servers.run(servers.operations.list_groups(None))
        servers.run(servers.operations.describe_group("g", None))
        servers.run(servers.operations.group_offsets("g", None))
        return [call.request.min_revision for call in servers.asked[-3:]]

    assert asked_for() == [0, 0, 0]
    servers.run(servers.operations.delete_groups(["g"], None))
    assert asked_for() == [7, 7, 7]
    servers.run(servers.operations.reset_group_offsets("g", {TopicPartition("t", 0): 1}, None))
    assert asked_for() == [9, 9, 9]
