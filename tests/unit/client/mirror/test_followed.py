"""What a worker does for a whole mirror, between clusters that are dictionaries."""

import asyncio
from types import SimpleNamespace

from headrace.client.mirror import worker
from headrace.client.mirror.followed_groups import FollowedGroups
from headrace.client.mirror.followed_topics import FollowedTopics
from headrace.client.mirror.rows import MirrorDescription, MirroredTopic, MirrorSettings, PartitionReport
from headrace.client.mirror.worker import MirrorWorker
from headrace.wire.errors import ConflictError, Outcome, TransportError, UnknownGroupError
from headrace.wire.ids import TopicPartition


class FakeAdmin:
    """Cluster with topics, by name their id, and one group, whose offsets are in the topics of `offset_ids`."""

    def __init__(self, topics, offsets):
        self.topics = topics
        self.offsets = offsets
        self.offset_ids = {"orders": b"\1", "clicks": b"\3"}
        self.epoch = 0
        self.end_offset = 9

    async def list_topics(self):
        return list(self.topics)

    async def describe_topic(self, name):
        return SimpleNamespace(topic_id=self.topics[name], partitions=[0])

    async def describe_topics(self):
        partitions = [SimpleNamespace(partition=0, leader_id=1), SimpleNamespace(partition=1, leader_id=-1)]
        return [
            SimpleNamespace(name=name, topic_id=topic_id, partitions=partitions)
            for name, topic_id in self.topics.items()
        ]

    async def list_offsets(self, name, at, *, partitions):
        assert (at, partitions) == ("latest", [0])
        return {TopicPartition(name, 0): SimpleNamespace(offset=self.end_offset)}

    async def list_groups(self):
        return [SimpleNamespace(group_id="billing")]

    async def group_offsets(self, group):
        return {
            tp: SimpleNamespace(offset=offset, topic_id=self.offset_ids[tp.topic])
            for tp, offset in self.offsets.items()
        }

    async def describe_group(self, group):
        if not self.offsets:
            raise UnknownGroupError(f"there is no group {group}")
        return SimpleNamespace(offsets=await self.group_offsets(group), group_epoch=self.epoch)

    async def reset_group_offsets(self, group, offsets, *, expected_group_epoch=None):
        if expected_group_epoch not in (None, self.epoch):
            raise ConflictError(f"the members or the offsets of group {group} changed")
        self.offsets |= offsets
        return [
            SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, error=None)
            for tp, offset in offsets.items()
        ]


async def noted(*_):
    """Store nothing."""


def of_orders(end_offset):
    """Return a mirror whose copy of one topic ends there."""
    reports = {0: PartitionReport(end_offset, end_offset, 0, 0, "w0")}
    return MirrorDescription("west", MirrorSettings({}), topics=[MirroredTopic("orders", "01", partitions=reports)])


async def run_until(ended, **settings):
    """Run a worker until the event is set."""
    running = asyncio.create_task(MirrorWorker("west", bootstrap_servers="west:7181", **settings).run())
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=30)
    await worker.end_tasks([running, waiting])
    assert ended.is_set()


def test_positions_do_not_go_back_where_the_mirrors_own_group_has_moved_them():
    """Also after a worker has started, which has stored none yet; those that were copied follow the source back."""
    orders = TopicPartition("orders", 0)
    source, target = FakeAdmin({}, {orders: 3}), FakeAdmin({"orders": b"\4"}, {})

    async def follow(groups, position=None, here=None):
        source.offsets[orders] = position or source.offsets[orders]
        target.offsets |= {} if here is None else {orders: here}
        await groups.follow(of_orders(9))
        return target.offsets[orders]

    async def run():
        groups = FollowedGroups(source, target)
        assert [await follow(groups, 3), await follow(groups, 5), await follow(groups, 4)] == [3, 5, 4]
        assert await follow(groups, here=7) == 7, "moved here"
        assert await follow(groups, position=6) == 7
        groups = FollowedGroups(source, target)
        assert await follow(groups) == 7
        assert await follow(groups, position=8) == 8
        groups = FollowedGroups(source, target)
        assert await follow(groups) == 8
        assert await follow(groups, position=2) == 2

    asyncio.run(run())


def test_a_position_that_arrives_late_does_not_set_back_a_group_that_has_read_meanwhile():
    """The call is repeated for seconds: a consumer may join here, commit and leave before it arrives."""
    orders = TopicPartition("orders", 0)
    source, target = FakeAdmin({}, {orders: 6}), FakeAdmin({"orders": b"\4"}, {orders: 5})
    described = target.describe_group

    async def read_after_the_look(group):
        found = await described(group)
        target.epoch, target.offsets = target.epoch + 2, {orders: 8}
        return found

    async def run():
        groups = FollowedGroups(source, target)
        target.describe_group = read_after_the_look
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 8}
        target.describe_group = described
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 8}, "read here"
        source.offsets[orders] = 9
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 9}, "followed again, at the new epoch"

    asyncio.run(run())


def test_offsets_in_a_topic_that_was_created_again_are_not_those_of_the_copy():
    """Not even in the round that finds it: they would be positions among other records."""
    old, kept = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    source = FakeAdmin({"orders": b"\2"}, {old: 3, kept: 4})
    target = FakeAdmin({"orders": b"\4", "clicks": b"\5"}, {})
    reports = {0: PartitionReport(9, 9, 0, 0, "w0")}
    described = MirrorDescription(
        "west",
        MirrorSettings({}),
        topics=[MirroredTopic("orders", "01", partitions=reports), MirroredTopic("clicks", "03", partitions=reports)],
    )
    clicks = described.topics[1]

    async def follow():
        mirrors = SimpleNamespace(admin=target, note_topic=noted)
        source.topics["clicks"] = b"\3"
        clicks.is_promoted = True  # Its settings are not compared.
        await FollowedTopics("west", source, mirrors).follow(described)
        clicks.is_promoted = False
        await FollowedGroups(source, target).follow(described)

    asyncio.run(follow())
    assert "created again" in described.topics[0].problem
    assert target.offsets == {kept: 4}


def test_an_offset_in_a_topic_that_was_created_again_after_the_look_is_not_copied():
    """The topic that is copied is the earlier one, and so is the position that the mirror's group has."""
    orders = TopicPartition("orders", 0)
    source, target = FakeAdmin({}, {orders: 8}), FakeAdmin({"orders": b"\4"}, {})

    async def run():
        groups = FollowedGroups(source, target)
        await groups.follow(of_orders(9))
        source.offset_ids["orders"], source.offsets[orders] = b"\2", 3
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 8}

    asyncio.run(run())


def test_positions_are_stored_again_in_a_topic_that_was_deleted_here_and_copied_anew():
    """They went with the earlier copy, whose end is reported until the new one has reported its own; it has less."""
    orders = TopicPartition("orders", 0)
    source, target = FakeAdmin({}, {orders: 3}), FakeAdmin({"orders": b"\4"}, {})

    async def run():
        groups = FollowedGroups(source, target)
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 3}
        target.topics, target.offsets = {}, {}
        await groups.follow(of_orders(9))
        target.topics, target.offsets, target.end_offset = {"orders": b"\5"}, {}, 2
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 2}
        target.end_offset = 9
        await groups.follow(of_orders(9))
        assert target.offsets == {orders: 3}

    asyncio.run(run())


def test_positions_are_not_behind_what_consumers_see_here():
    """The leader's copies that no follower has may go with it; a promoted log would then have other records there."""
    orders, away = TopicPartition("orders", 0), TopicPartition("orders", 1)
    source, target = FakeAdmin({}, {orders: 8, away: 8}), FakeAdmin({"orders": b"\4"}, {})
    described = of_orders(9)
    described.topics[0].partitions[1] = described.topics[0].partitions[0]

    async def run():
        groups = FollowedGroups(source, target)
        for end_offset, stored in ((5, 5), (7, 7), (9, 8)):
            target.end_offset = end_offset
            await groups.follow(described)
            assert target.offsets == {orders: stored}, "a partition without a leader waits"

    asyncio.run(run())


def test_a_topic_that_the_mirror_leaves_out_is_told_from_one_that_is_gone():
    """The patterns of a mirror may change: what they leave out is at the source all the same, and is not copied."""
    source, target = FakeAdmin({"orders": b"\1", "clicks": b"\2"}, {}), FakeAdmin({"clicks": b"\4"}, {})
    topics = [MirroredTopic("clicks", "02"), MirroredTopic("gone", "03")]
    described = MirrorDescription("west", MirrorSettings({}, topics=("others",)), topics=topics)
    asyncio.run(FollowedTopics("west", source, SimpleNamespace(admin=target, note_topic=noted)).follow(described))
    assert [topic.problem for topic in topics] == [
        "the topics of the mirror leave it out; add it to them, or promote it",
        "the topic is not at the source any more",
    ]


class EmptySide:
    """Cluster without anything."""

    def __init__(self, _settings):
        self.settings = {}
        self.admin = self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def describe_cluster(self):
        return SimpleNamespace(cluster_id="west")


def test_a_worker_lives_while_it_waits(monkeypatch):
    """For the table, or for as many topics as there are: another worker must not take its partitions."""

    class Mirrors(EmptySide):
        def __init__(self, **_):
            self.admin, self.lives, self.is_alive = self, 0, asyncio.Event()

        async def describe(self, name):
            return of_orders(0)

        async def note_worker(self, *_):
            self.lives += 1
            if self.lives == 5:
                self.is_alive.set()

        async def rows(self, **_):
            await self.is_alive.wait()
            ended.set()
            return {}

        note_source = note_problem = note_worker_gone = noted

    ended = asyncio.Event()

    monkeypatch.setattr(worker, "AsyncMirrors", Mirrors)
    monkeypatch.setattr(worker, "Side", EmptySide)
    monkeypatch.setattr(worker, "ALIVE_SECONDS", 0.03)
    asyncio.run(run_until(ended))


def test_a_worker_that_does_not_reach_the_source_does_not_keep_its_partitions(monkeypatch):
    """Others may reach it; it tries again."""
    tries, ended = [], asyncio.Event()

    class Mirrors(EmptySide):
        def __init__(self, **_):
            pass

        async def describe(self, name):
            return of_orders(0)

        async def note_worker(self, *_):
            tries.append("lives")

        async def note_problem(self, _name, problem):
            tries.append(problem)
            if len(tries) == 3:
                ended.set()

    class AwaySide(EmptySide):
        async def describe_cluster(self):
            await asyncio.sleep(0)
            raise TransportError("it is away", outcome=Outcome.NOT_APPLIED)

    monkeypatch.setattr(worker, "AsyncMirrors", Mirrors)
    monkeypatch.setattr(worker, "Side", AwaySide)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    asyncio.run(run_until(ended))
    assert set(tries) == {"it is away"}


def test_a_worker_survives_an_error_that_nobody_expected(monkeypatch):
    """It reports it, and tries again."""
    failures, reports, ended = [ZeroDivisionError("a bug")], [], asyncio.Event()

    class Mirrors:
        def __init__(self, **_):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def describe(self, name):
            if failures:
                raise failures.pop()
            return MirrorDescription(name, MirrorSettings({}), promoted_ms=1)

        note_problem = noted

    def report(name, described):
        reports.append("" if described is None else described.problem)
        if described is None:
            ended.set()

    monkeypatch.setattr(worker, "AsyncMirrors", Mirrors)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    asyncio.run(run_until(ended, on_report=report))
    assert reports == ["ZeroDivisionError('a bug')", ""]
