"""Groups under random joins, delays, repeats, lost leases and racing coordinators: I24, I25 and I28 after every step.

The metastore is a counter and dictionaries; coordinators work on snapshots that may be old, and their writes hold only
where the compares do. Members are the least that the contract asks of one: what is assigned is owned from the moment
the answer is taken in until it was given up, and every heartbeat says what is owned. Users that know the ids of other
users' members act for them, and change nothing by that.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from headrace.groups.assignors import ASSIGNORS, AssignableTopic
from headrace.groups.heartbeats import MemberDeparture, MemberHeartbeat, taken_by_another_user
from headrace.groups.state import Group, Member
from headrace.groups.transition import MAX_OPERATIONS, transition
from headrace.wire.errors import FencedInstanceError, FencedMemberEpochError, HeadraceError, UnknownMemberError
from headrace_coordinator.core.group_encoding import decode_group, encode_assignments, encode_group
from headrace_server.internal_v1 import metadata_pb2

SEEDS = 40
STEPS = 200
REBALANCE_MS = 60_000
USERS = ("", "ada", "bob")


@dataclass
class Snapshot:
    """The metastore's keys at one revision."""

    revision: int = 1
    state: bytes = b""
    assignments: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)
    topics: dict = field(default_factory=dict)
    deleted: frozenset = frozenset()

    def copy(self):
        copies = (dict(each) for each in (self.assignments, self.live, self.topics))
        return Snapshot(self.revision, self.state, *copies, self.deleted)

    @property
    def group(self):
        return decode_group(self.state) if self.state else Group()


class Client:
    """A member by the contract."""

    def __init__(self, world, instance_id=""):
        self.world = world
        self.instance_id = instance_id
        self.user = world.random.choice(USERS)
        self.start()

    def start(self):
        self.member_id = self.world.random.randbytes(16)
        self.epoch = self.revision = 0
        self.holds = {}
        self.releasing = set()
        self.names = tuple(sorted(self.world.random.sample(("a", "b", "c"), self.world.random.randint(1, 3))))

    def heartbeat(self):
        member = Member(
            self.member_id,
            self.instance_id,
            self.user,
            topics=self.names,
            lease_id=self.world.random.getrandbits(40),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        return MemberHeartbeat(member, self.epoch, self.world.assignor, frozenset(self.holds) if self.epoch else None)

    def hear(self, snapshot):
        """Take in an answer made from a view; a coordinator first reads from etcd whether the session is still live."""
        value = snapshot.assignments.get(self.member_id)
        if value is None or self.world.store.live.get(self.member_id) != snapshot.live.get(self.member_id):
            return
        revision, value = value
        answer = metadata_pb2.MemberAssignment.FromString(value)
        if revision < self.revision or answer.member_epoch < self.epoch:
            return
        self.revision, self.epoch = revision, answer.member_epoch
        assigned = {
            (topic.topic_id, number): epoch
            for topic in answer.topics
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
            if number not in topic.revoking
        }
        self.releasing = {partition for partition in self.holds if partition not in assigned}
        self.holds.update(assigned)

    def give_up(self):
        for partition in self.releasing:
            del self.holds[partition]
        self.releasing = set()


class World:
    """One group, its members and two coordinators."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.assignor = self.random.choice(sorted(ASSIGNORS))
        self.store = Snapshot()
        self.past = [self.store.copy()]
        self.now_ms = 1
        self.clients = []
        self.on_their_way = []
        self.granted = {}
        """By partition: the epoch of the last grant, and to whom."""
        self.put_topic("a")
        self.put_topic("b")

    def change(self):
        self.store.revision += 1
        self.past = [*self.past[-5:], self.store.copy()]

    def put_topic(self, name):
        topic = self.store.topics.get(name)
        if topic is None:
            self.store.topics[name] = AssignableTopic(self.random.randbytes(16), name, self.random.randint(1, 6))
        else:
            self.store.topics[name] = replace(topic, partitions=topic.partitions + self.random.randint(1, 3))
        self.change()

    def step(self):
        action = self.random.choices(
            (
                self.join,
                self.speak,
                self.late,
                self.answer,
                self.release,
                self.crash,
                self.leave,
                self.topic,
                self.look,
                self.intrude,
            ),
            (4, 12, 4, 12, 6, 1, 1, 1, 3, 3),
        )[0]
        self.now_ms += self.random.choice((1, 10, 1_000))
        action()

    def join(self):
        if len(self.clients) < 6:
            instance_id = self.random.choice(("", "", "one", "two"))
            self.clients.append(Client(self, instance_id))

    def some_client(self):
        return self.random.choice(self.clients) if self.clients else None

    def speak(self):
        client = self.some_client()
        if client is None:
            return
        beat = client.heartbeat()
        if self.random.random() < 0.3:
            self.on_their_way.append(beat)  # Given up by the client; it may arrive yet.
        else:
            self.round([beat], client)

    def late(self):
        if self.on_their_way:
            beats = [self.on_their_way.pop(self.random.randrange(len(self.on_their_way)))]
            if beats[0].member_epoch:  # A join without a waiting caller is withdrawn.
                self.round(beats, None)

    def answer(self):
        client = self.some_client()
        if client is not None:
            client.hear(self.random.choice(self.past))

    def release(self):
        client = self.some_client()
        if client is not None:
            client.give_up()

    def crash(self):
        client = self.some_client()
        if client is not None:
            self.store.live.pop(client.member_id, None)
            self.change()
            self.clients.remove(client)

    def leave(self):
        client = self.some_client()
        if client is not None:
            client.holds.clear()
            self.clients.remove(client)
            self.round([], None, leaving=[MemberDeparture(client.member_id, client.user)])

    def topic(self):
        name = self.random.choice(("a", "b", "c"))
        if name in self.store.topics and self.random.random() < 0.3:
            self.store.deleted |= {self.store.topics.pop(name).topic_id}
            self.change()
        elif sum(topic.partitions for topic in self.store.topics.values()) < 20:
            self.put_topic(name)

    def is_overdue(self, member):
        """Coordinators count for themselves, each from another moment."""
        return member.revoking_since_ms and self.random.random() < 0.02

    def look(self):
        self.round([], None)

    def intrude(self):
        """A heartbeat that gives up all partitions, and a departure, of a member by another user: as if never sent."""
        client = self.some_client()
        if client is None or not client.user or client.member_id not in self.store.group.members:
            return
        beat = replace(client.heartbeat(), owned=frozenset())
        other = self.random.choice([user for user in USERS if user != client.user])
        forged = replace(beat, member=replace(beat.member, user=other, topics=("c",)))
        result = self.compute(self.store, self.store, [forged], [MemberDeparture(client.member_id, other)])
        assert result.group == self.compute(self.store, self.store).group
        assert isinstance(result.errors.get(client.member_id), UnknownMemberError) or result.deferred

    def round(self, beats, client, leaving=()):
        """One round at a coordinator, whose view may be old; refusals are only believed where it has caught up."""
        groups = self.store if self.random.random() < 0.6 else self.random.choice(self.past)
        topics = self.store if self.random.random() < 0.6 else self.random.choice(self.past)
        if client is not None and (
            groups.revision < client.revision or taken_by_another_user(groups.group.members, beats[0].member)
        ):
            groups = self.store
        before = groups.group
        overdue = [m for m, member in before.members.items() if self.is_overdue(member)]
        result = self.compute(groups, topics, beats, leaving, overdue)
        assert result.changes(before) or not result.more, "work is left that no transaction does"
        if result.changes(before):
            if groups.state != self.store.state:
                return
            if any(member_id in self.store.live for member_id in result.absent):
                return
            self.write(before, result)
        if client is not None and isinstance(error := result.errors.get(client.member_id), HeadraceError):
            self.refused(client, error)

    def compute(self, groups, topics, beats=(), leaving=(), overdue=()):
        return transition(
            groups.group,
            heartbeats=beats,
            leaving=leaving,
            live=groups.live,
            topics=topics.topics,
            deleted=topics.deleted,
            stored={member_id: value for member_id, (_, value) in groups.assignments.items()},
            encode_assignments=encode_assignments,
            begun={},
            overdue=overdue,
            now_ms=self.now_ms,
        )

    def refused(self, client, error):
        assert isinstance(error, UnknownMemberError | FencedMemberEpochError | FencedInstanceError)
        assert client.member_id not in self.store.group.members, f"a false {error!r}"
        if isinstance(error, FencedInstanceError):
            self.clients.remove(client)
        else:
            client.start()

    def write(self, before, result):
        group, store = result.group, self.store
        operations = 1 + 2 * len(result.ended) + len(result.absent) + len(result.assignments)
        assert operations + len(group.members.keys() - before.members.keys()) <= MAX_OPERATIONS
        assert not set(result.gone) & result.assignments.keys(), "one transaction deletes a key and puts it"
        store.state = encode_group(group)
        assert decode_group(store.state) == group
        store.revision += 1
        for member_id in result.gone:
            store.assignments.pop(member_id, None)
        for member_id in result.ended:
            store.live.pop(member_id, None)
        for member_id, value in result.assignments.items():
            store.assignments[member_id] = store.revision, value
        for member_id in group.members.keys() - before.members.keys():
            store.live[member_id] = group.members[member_id].lease_id
        self.check(before, group)
        self.past = [*self.past[-5:], store.copy()]

    # --- invariants ---

    def check(self, before, group):
        assert before.group_epoch <= group.group_epoch <= before.group_epoch + 1  # I28: at most one for a revision
        assert group.assignment_epoch >= before.assignment_epoch
        for member_id, member in group.members.items():
            known = before.members.get(member_id)
            assert known is None or member.member_epoch >= known.member_epoch
            assert member.member_epoch > 0
        instances = [member.instance_id for member in group.members.values() if member.instance_id]
        assert len(instances) == len(set(instances))
        self.check_target(group)
        owned = {}
        existing = {topic.topic_id for topic in self.store.topics.values()}  # Nothing can be read of the others.
        for member_id, (_, value) in self.store.assignments.items():
            for topic in metadata_pb2.MemberAssignment.FromString(value).topics:
                if topic.topic_id not in existing:
                    continue
                for number in topic.partitions:
                    assert (topic.topic_id, number) not in owned, "I24: two owners"
                    owned[(topic.topic_id, number)] = member_id
        for partition, owner in group.owners.items():
            if partition[0] not in existing:
                continue  # A coordinator that is behind does not know.
            last = self.granted.get(partition)
            if last is not None and last != (owner.assignment_epoch, owner.member_id):
                assert owner.assignment_epoch > last[0], "I24: the assignment epoch does not rise"
            self.granted[partition] = owner.assignment_epoch, owner.member_id
            assert owner.assignment_epoch <= group.members[owner.member_id].member_epoch  # commits hold from now on
            for client in self.clients:  # I25
                is_fenced = client.member_id not in group.members
                if client.member_id != owner.member_id and not is_fenced:
                    assert partition not in client.holds, "I25: granted while another member has it"

    def check_target(self, group):
        wanted = {
            (topic.topic_id, number): topic.name
            for topic in group.topics.values()
            if any(topic.name in member.topics for member in group.members.values())
            for number in range(topic.partitions)
        }
        for partition, member_id in group.target.items():
            assert wanted[partition] in group.members[member_id].topics
        now = {topic.topic_id for topic in self.store.topics.values()}
        for partition in wanted:
            assert partition in group.target or partition[0] not in now

    # --- the end ---

    def settle(self):
        """Nothing disturbs any more: everybody speaks, hears and gives up in turn."""
        self.on_their_way.clear()
        present = {client.member_id for client in self.clients}
        self.store.live = {m: lease for m, lease in self.store.live.items() if m in present}
        self.change()
        self.random.random = lambda: 0.5
        quiet = 0
        for _ in range(40):
            before = self.store.state
            for client in list(self.clients):
                self.round([client.heartbeat()], client)
                client.hear(self.store)
                client.give_up()
            self.round([], None)
            quiet = quiet + 1 if self.store.state == before else 0
            if quiet == 3:
                break
        else:
            pytest.fail("the group does not come to rest")
        group = self.store.group
        assert group.is_stable
        assert group.members.keys() == {client.member_id for client in self.clients}
        derived = encode_assignments(group)
        assert {m: value for m, (_, value) in self.store.assignments.items()} == derived
        for client in self.clients:
            assert client.holds.keys() == group.owned_by(client.member_id).keys()
        held = [partition for client in self.clients for partition in client.holds]
        assert len(held) == len(set(held)) == len(group.target)


@pytest.mark.parametrize("block", range(4))
def test_groups_keep_their_invariants_and_come_to_rest(block, monkeypatch):
    """With delayed, repeated and lost requests no partition has two owners; without faults all reach their targets."""
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        monkeypatch.setattr("headrace.groups.transition.MAX_ASSIGNMENT_BYTES", 60 if seed % 4 == 0 else 256 << 10)
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.settle()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
