"""Groups of a directory under random members, faults of the file system and crashes: I25, I27, and epochs that rise.

Members are the least that the contract asks of one, as in `test_group_transition`. After a crash the members of the
process are gone, its offsets are not; a change that could not be stored has not happened.
"""

from __future__ import annotations

import errno
import random
from types import SimpleNamespace

import pytest
from headrace.embedded import groups as groups_module
from headrace.embedded.group_offsets import GroupFiles
from headrace.embedded.groups import DirectoryGroups
from headrace.groups.assignors import AssignableTopic
from headrace.log.errors import StorageFullError
from headrace.v1 import errors_pb2, groups_pb2
from headrace.wire.errors import HeadraceError

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem, PowerLost

SEEDS = 60
STEPS = 150
SESSION_MS = 10_000
GROUP = "Billing"
TOPICS = {name: AssignableTopic(name[:1].encode() * 16, name, 3) for name in ("alpha", "beta")}
WRITES = frozenset({"open", "pwritev", "make_directory"})


class Client:
    """Member by the contract."""

    def __init__(self, chance: random.Random) -> None:
        self.member_id = chance.randbytes(16)
        self.topics = sorted(chance.sample(sorted(TOPICS), chance.randint(1, 2)))
        self.epoch = self.commits = 0
        self.owned: set[tuple[bytes, int]] = set()
        self.seen = 0.0

    def heartbeat(self, groups: DirectoryGroups, now: float) -> None:
        """Report what it owns, then own what is assigned; what is not, it has released by its next heartbeat."""
        request = groups_pb2.HeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topics=self.topics,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
        )
        if self.epoch:
            request.owned.SetInParent()
            for topic_id, number in sorted(self.owned):
                request.owned.topics.add(topic_id=topic_id, partitions=[number])
        attempt, _ = groups.heartbeat(request)
        answer = attempt(True)
        assert answer is not None
        self.epoch, self.seen = answer.member_epoch, now
        self.owned = {(topic.topic_id, number) for topic in answer.assigned for number in topic.partitions}

    def commit(self, groups: DirectoryGroups, partition: tuple[bytes, int], offset: int) -> None:
        self.commits += 1
        request = groups_pb2.CommitOffsetsRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, commit_number=self.commits
        )
        request.topics.add(topic_id=partition[0]).partitions.add(partition=partition[1], offset=offset)
        (topic,) = groups.commit(request).topics
        assert not topic.partitions[0].HasField("error"), topic.partitions[0].error


class World:
    """A directory's groups, their members, and what was acknowledged."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: int(self.now * 1e9))
        monkeypatch.setattr(groups_module, "time", clock)
        self.filesystem = MemoryFileSystem()
        self.filesystem.make_directory("/events")
        self.filesystem.fsync_directory("")
        self.committed: dict[tuple[bytes, int], int] = {}
        self.attempted: dict[tuple[bytes, int], set[int]] = {}
        self.offset = self.epoch = 0
        self.open()

    def open(self) -> None:
        self.groups = DirectoryGroups(GroupFiles(self.filesystem, "/events"), lambda: TOPICS)
        self.clients: list[Client] = []
        self.first_epoch = self.epoch + 1
        """Every epoch from now on is one that no member of an earlier process has seen."""

    def step(self) -> None:
        kind = self.random.choices(
            ("join", "heartbeat", "commit", "leave", "forget", "wait", "crash", "full", "delete"),
            (4, 20, 12, 2, 1, 3, 1, 2, 1),
        )[0]
        try:
            getattr(self, kind)()
        except PowerLost:
            self.crash()
        self.check()

    def join(self) -> None:
        if len(self.clients) < 5:
            self.clients.append(Client(self.random))
            self.beat(self.clients[-1])

    def heartbeat(self) -> None:
        if self.clients:
            self.beat(self.random.choice(self.clients))

    def beat(self, client: Client) -> None:
        """Heartbeat; a member that is none any more starts over, and one that could not join tries again."""
        try:
            client.heartbeat(self.groups, self.now)
        except StorageFullError:
            return
        except HeadraceError:
            self.clients.remove(client)
            return
        assert client.epoch >= self.first_epoch, "an epoch was used by an earlier process"
        self.epoch = max(self.epoch, client.epoch)

    def commit(self) -> None:
        live = [client for client in self.clients if client.owned and self.is_live(client)]
        if not live:
            return
        client = self.random.choice(live)
        partition = self.random.choice(sorted(client.owned))
        self.offset += 1
        self.attempted.setdefault(partition, set()).add(self.offset)
        try:
            client.commit(self.groups, partition, self.offset)
        except StorageFullError:
            self.attempted[partition].discard(self.offset)
        else:
            self.committed[partition] = self.offset
            self.attempted[partition].clear()

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            self.groups.leave(groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=client.member_id))

    def forget(self) -> None:
        """A member stops without a word."""
        if self.clients:
            self.clients.pop(self.random.randrange(len(self.clients)))

    def wait(self) -> None:
        self.now += self.random.random() * SESSION_MS / 2_000
        self.groups.look()

    def full(self) -> None:
        """The disk is full for some calls, or the machine stops at one of the next."""
        if self.random.random() < 0.5:
            self.filesystem.refuse(errno.ENOSPC, WRITES, after=self.random.randrange(3), lasting=True)
        else:
            self.filesystem.lose_power(after=self.random.randrange(8))
        for _ in range(3):
            self.random.choice((self.join, self.heartbeat, self.commit))()
        self.filesystem.stop_refusing()
        self.filesystem.keep_power()

    def delete(self) -> None:
        """All members leave, and an administrator deletes the group: a later one of this name has higher epochs."""
        while self.clients:
            self.leave()
        self.now += 2 * SESSION_MS / 1_000  # Members without a word are gone, too.
        self.groups.look()
        (answer,) = self.groups.delete(groups_pb2.DeleteGroupsRequest(group_ids=[GROUP])).groups
        assert answer.error.code in (0, errors_pb2.ERROR_CODE_UNKNOWN_GROUP), answer.error
        self.committed.clear()
        self.first_epoch = self.epoch + 1

    def crash(self) -> None:
        """The process is gone with its machine; whatever a commit was acknowledged as is still there."""
        self.filesystem.crash(self.random.choice(list(Loss)), self.random)
        self.open()
        found = self.stored()
        for partition in {*self.committed, *self.attempted}:
            offset = found.get(partition, -1)
            possible = {self.committed.get(partition, -1)} | self.attempted.get(partition, set())
            assert offset in possible, f"{partition}: {offset}, not of {possible}"
            if offset >= 0:
                self.committed[partition] = offset
        self.attempted.clear()

    def is_live(self, client: Client) -> bool:
        return self.now - client.seen <= SESSION_MS / 1_000

    def stored(self) -> dict[tuple[bytes, int], int]:
        answer = self.groups.fetch_offsets(groups_pb2.FetchOffsetsRequest(group_id=GROUP))
        return {(topic.topic_id, each.partition): each.offset for topic in answer.topics for each in topic.partitions}

    def check(self) -> None:
        owners: dict[tuple[bytes, int], Client] = {}
        for client in self.clients:
            for partition in client.owned if self.is_live(client) else ():
                assert owners.setdefault(partition, client) is client, f"{partition} has two owners (I25)"
        assert self.stored() == self.committed


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_groups_of_a_directory_through_faults_and_crashes(first, monkeypatch):
    """One owner for each partition, acknowledged offsets are kept, and no epoch is used twice."""
    for seed in range(first, first + 20):
        world = World(seed, monkeypatch)
        for step in range(STEPS):
            try:
                world.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error


def test_a_full_disk_changes_no_group_in_memory(monkeypatch):
    """A member that cannot be stored has not joined: its group is not listed, and its epoch is not used."""
    world = World(1, monkeypatch)
    client = Client(world.random)
    world.filesystem.refuse(errno.ENOSPC, WRITES, after=0, lasting=True)
    for _ in range(2):
        with pytest.raises(StorageFullError):
            client.heartbeat(world.groups, world.now)
    assert not world.groups.list(groups_pb2.ListGroupsRequest()).groups
    world.filesystem.stop_refusing()
    client.heartbeat(world.groups, world.now)
    assert len(client.owned) == 3 * len(client.topics)


def test_a_heartbeat_of_a_stranger_makes_no_group(monkeypatch):
    world = World(1, monkeypatch)
    client = Client(world.random)
    client.epoch = 7
    with pytest.raises(HeadraceError):
        client.heartbeat(world.groups, world.now)
    assert not world.groups.list(groups_pb2.ListGroupsRequest()).groups


def test_groups_whose_names_a_file_system_may_confuse_have_files_of_their_own():
    """Names that differ in case only, and a name that looks like a file of another group that is being replaced."""
    filesystem = MemoryFileSystem()
    filesystem.make_directory("/events")
    names = ["a", "A", "a.tmp", "a.tmp.tmp", "aB", "ab"]
    groups = DirectoryGroups(GroupFiles(filesystem, "/events"), lambda: TOPICS)
    for _ in range(2):
        for offset, name in enumerate(names):
            request = groups_pb2.CommitOffsetsRequest(group_id=name)
            request.topics.add(topic_id=TOPICS["alpha"].topic_id).partitions.add(partition=0, offset=offset)
            groups.commit(request)
    files = filesystem.list_directory("/events/groups")
    assert len({file.lower() for file in files}) == len(names)
    again = DirectoryGroups(GroupFiles(filesystem, "/events"), lambda: TOPICS)
    for offset, name in enumerate(names):
        answer = again.fetch_offsets(groups_pb2.FetchOffsetsRequest(group_id=name))
        assert [each.offset for topic in answer.topics for each in topic.partitions] == [offset]


def test_a_member_has_the_whole_time_again_for_what_it_has_not_released(monkeypatch):
    """It was asked for a second partition before it had released the first."""
    world = World(1, monkeypatch)
    clients = [Client(world.random) for _ in range(3)]
    for client in clients:
        client.topics = ["alpha"]
    slow = clients[0]
    slow.heartbeat(world.groups, world.now)
    held = set(slow.owned)

    def report(owned):
        slow.owned = set(owned)
        slow.heartbeat(world.groups, world.now)
        return held - slow.owned

    def others_heartbeat(count, seconds):
        for _ in range(seconds):
            world.now += 1
            for client in clients[1:count]:
                client.heartbeat(world.groups, world.now)
            if world.now % 5 == 0:
                report(held)

    others_heartbeat(2, 35)
    first = report(held)
    others_heartbeat(3, 5)
    assert len(first) == 1
    assert len(report(held)) == 2
    held -= first
    report(held)
    others_heartbeat(3, 60)
    report(held)
    others_heartbeat(3, 1)
    with pytest.raises(HeadraceError, match="has no member"):
        report(held)


def test_a_removal_of_offsets_creates_no_group(monkeypatch):
    """Nor a file: there is nothing to remove."""
    groups = World(1, monkeypatch).groups
    request = groups_pb2.CommitOffsetsRequest(group_id="new")
    request.topics.add(topic_id=TOPICS["alpha"].topic_id).partitions.add(partition=0, offset=-1)
    assert not groups.commit(request).topics[0].partitions[0].HasField("error")
    assert not groups.list(groups_pb2.ListGroupsRequest()).groups
