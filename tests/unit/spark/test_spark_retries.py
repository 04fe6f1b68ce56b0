"""A micro-batch that is tried again, on a cluster over lists: each row is stored once, or the try is refused before it
stores anything. No Spark runs; tasks run one after another, as tries of Spark's may.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from headrace.client.admin.admin import Admin
from headrace.client.admin.replication import LogInfo
from headrace.client.base.errors import ConfigError
from headrace.spark.errors import OtherRowsError
from headrace.spark.identity import DRIVER_TASK, TaskIdentity
from headrace.spark.options import write_options
from headrace.spark.ranges import NO_END
from headrace.spark.retries import TaskReport, settle
from headrace.spark.routes import Share
from headrace.spark.task_writer import TaskWriter
from headrace.spark.writer import log_ends
from headrace.wire.errors import InvalidRequestError

from tests.fakes.cluster import FakeCluster, FakePartition, lost_answer, running_fake

Rows = list[dict[str, object]]
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class DriverDiedError(Exception):
    """The driver ends here, and all of its tasks."""


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running_fake() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


class MicroBatch:
    """Micro-batch 3 of one query, and its tries."""

    def __init__(self, fake: FakeCluster, **options: str) -> None:
        self.fake = fake
        self.lives = 1 << 30
        # One request at a time: the fake's threads may take two in another order than they came.
        own = {"headrace.max.in.flight.requests": "1", "topic": "t"}
        given = {"headrace.bootstrap.servers": fake.address} | own | options
        self.options = write_options({name: text for name, text in given.items() if text})

    def ends(self) -> dict:
        with Admin(bootstrap_servers=self.fake.address) as admin:
            topics = [self.options.topic] if self.options.topic else list(self.fake.topics)
            return {where: at.offset for topic in topics for where, at in admin.list_offsets(topic, "latest").items()}

    def task(self, number: int, batches: Sequence[Rows], ends: dict) -> TaskReport | None:
        """Run a task; gives what it found of earlier tries."""
        identity = TaskIdentity("a query", 3, number)
        with DyingWriter(self.options, identity, ends) as writer:
            writer.lives = self.lives
            for rows in batches:
                writer.write(table(rows))
            writer.finish()
            self.lives = writer.lives
            assert writer.rows == sum(map(len, batches))
            return TaskReport(identity, writer.reports) if writer.reports else None

    def attempt(self, tasks: Sequence[Sequence[Rows]], *, commits: bool = True, ends: dict | None = None) -> int:
        """One try with these tasks; gives how many rows the driver stored."""
        ends = self.ends() if ends is None else ends
        found = [self.task(number, batches, ends) for number, batches in enumerate(tasks)]
        reports = [report for report in found if report is not None]
        columns = [*dict.fromkeys(name for batches in tasks for rows in batches for row in rows for name in row)]
        if not commits:
            raise DriverDiedError
        return settle(self.options, columns, reports) if reports else 0

    def dies(self, tasks: Sequence[Sequence[Rows]]) -> None:
        """One try that stores this, and dies before the driver ends the micro-batch."""
        with pytest.raises(DriverDiedError):
            self.attempt(tasks, commits=False)

    def stored(self, topic: str = "t") -> list[list[bytes | None]]:
        return [partition.values() for partition in self.fake.topics[topic].partitions]

    def counts(self) -> Counter:
        return Counter(value for values in self.stored() for value in values)


@pytest.fixture
def micro_batch(fake: FakeCluster) -> MicroBatch:
    return MicroBatch(fake)


def table(rows: Rows) -> pa.RecordBatch:
    names = list(rows[0])
    return pa.RecordBatch.from_pydict({name: pa.array([row[name] for row in rows], TYPES[name]) for name in names})


def rows(*numbers: int, keyed: bool = False) -> Rows:
    return [{"value": b"%d" % n} | ({"key": b"%d" % (n % 7)} if keyed else {}) for n in numbers]


def batches(numbers: Sequence[int], size: int = 10, keyed: bool = False) -> list[Rows]:
    return [rows(*numbers[at : at + size], keyed=keyed) for at in range(0, len(numbers), size)]


def once(numbers: Sequence[int]) -> Counter:
    return Counter(b"%d" % n for n in numbers)


@pytest.mark.parametrize(
    ("before", "tasks", "keyed"), [(1, 1, True), (1, 2, False), (1, 7, True), (3, 1, False), (3, 2, True)]
)
def test_another_number_of_tasks_stores_each_row_once(before, tasks, keyed, micro_batch: MicroBatch):
    """All was stored when the driver died; the rows are cut into fewer or more tasks then."""
    numbers = range(100)
    micro_batch.dies([batches(part, keyed=keyed) for part in cut(numbers, before)])
    assert micro_batch.attempt([batches(part, keyed=keyed) for part in cut(numbers, tasks)]) == 0
    assert micro_batch.counts() == once(numbers)


def test_a_first_try_without_the_ends_of_logs_stores_each_row_once(micro_batch: MicroBatch):
    """A broker did not answer, or refused: later tasks take records of the first ones for those of an earlier try. Two
    tasks have an equal row."""
    tasks = [batches([*part, 1000]) for part in cut(range(30), 3)]
    unknown = dict.fromkeys(micro_batch.ends(), NO_END)
    assert micro_batch.attempt(tasks, ends=unknown) == 2, "the driver stores the copies that tasks have matched"
    assert micro_batch.counts() == once(range(30)) + Counter({b"1000": 3})
    assert micro_batch.attempt(tasks, ends=unknown) == 0
    assert micro_batch.counts() == once(range(30)) + Counter({b"1000": 3})


@pytest.mark.parametrize("stored", [0, 20, 50, 70, 100])
def test_one_task_becomes_two_wherever_the_first_try_ended(stored, micro_batch: MicroBatch):
    """It is a prefix of the rows that is stored."""
    micro_batch.dies([batches(range(stored))])
    micro_batch.attempt([batches(part) for part in cut(range(100), 2)])
    assert micro_batch.counts() == once(range(100))


@pytest.mark.parametrize("keyed", [False, True])
def test_a_partition_that_was_added_between_two_tries(fake, keyed, micro_batch: MicroBatch):
    """Keys have other partitions then, and rows without one other turns; the query continues from there."""
    micro_batch.dies([batches(range(50), keyed=keyed)])
    fake.topics["t"].partitions.append(FakePartition())
    micro_batch.attempt([batches(range(70), keyed=keyed)])
    assert micro_batch.counts() == once(range(70))


def test_a_topic_that_was_made_anew_gets_all_rows(fake, micro_batch: MicroBatch):
    """What the first try stored went with the topic."""
    micro_batch.dies([batches(range(30))])
    fake.create_topic("t", partitions=2)
    micro_batch.attempt([batches(range(60))])
    assert micro_batch.counts() == once(range(60))


def test_rows_in_another_order_store_each_once(micro_batch: MicroBatch):
    """As after a shuffle: within a task the order is chance."""
    micro_batch.dies([batches(range(30)), batches(range(100, 105))])
    mixed = random.Random(1).sample(range(50), 50)
    micro_batch.attempt([batches(mixed), batches(range(120, 99, -1))])
    assert micro_batch.counts() == once([*range(50), *range(100, 121)])


def test_the_same_row_in_several_tasks_is_stored_as_often_as_it_is_there(micro_batch: MicroBatch):
    """A task cannot know that the other one has it, too: the driver stores what both took for theirs."""
    same = [rows(*[7] * 20)]
    micro_batch.dies([same])
    assert micro_batch.attempt([same, same, [rows(7, 8)]]) == 21
    assert micro_batch.counts() == Counter({b"7": 41, b"8": 1})
    # And when the driver dies then, before Spark has noted the end of the micro-batch.
    assert micro_batch.attempt([same, same, [rows(7, 8)]]) == 0
    assert micro_batch.attempt([[rows(*[7] * 41, 8)]]) == 0
    assert micro_batch.counts() == Counter({b"7": 41, b"8": 1})


def test_other_rows_are_refused_before_anything_is_stored(micro_batch: MicroBatch):
    """As often as they come; with the rows of the first try it continues."""
    micro_batch.dies([batches(range(20))])
    for number in range(3):
        with pytest.raises(OtherRowsError, match="this micro-batch stored 20 rows that it does not have now"):
            micro_batch.attempt([batches(range(1000 + 100 * number, 1020 + 100 * number))])
        assert micro_batch.counts() == once(range(20))
    micro_batch.attempt([batches(range(40))])
    assert micro_batch.counts() == once(range(40))


def test_rows_that_are_gone_end_the_micro_batch(micro_batch: MicroBatch):
    """Nothing is left to store, so it is the driver that finds it."""
    micro_batch.dies([batches(range(20)), batches(range(20, 40))])
    for tasks in ([batches(range(15)), batches(range(20, 40))], [batches(range(20))]):
        with pytest.raises(OtherRowsError, match=r"t: earlier tries of this micro-batch stored \d+ rows"):
            micro_batch.attempt(tasks)
    assert micro_batch.counts() == once(range(40))


def test_stored_rows_that_retention_has_removed_are_not_guessed_at(fake, micro_batch: MicroBatch):
    """Whether they were these rows cannot be determined."""
    micro_batch.dies([batches(range(20))])
    fake.topics["t"].partitions[0].start = 5
    with pytest.raises(OtherRowsError, match="t-0: records that an earlier try of micro-batch 3 stored are gone"):
        micro_batch.attempt([batches(range(40))])


def test_keys_timestamps_and_partitions_belong_to_a_row(fake):
    """The same value under another key, time or partition is another row."""
    at = [datetime.fromtimestamp(seconds, UTC) for seconds in (1_700_000_000, 1_700_000_001)]
    alike = [
        {"value": b"a", "key": key, "timestamp": time, "partition": partition}
        for key in (b"1", None)
        for time in at
        for partition in (0, 1)
    ]
    micro_batch = MicroBatch(fake)
    micro_batch.dies([[alike[:1], alike[5:6]]])
    micro_batch.attempt([[alike[4:], alike[:1]], [alike[1:4][::-1]]])
    assert micro_batch.stored() == [[b"a"] * 4, [b"a"] * 4]
    assert [Counter(log.keys()) for log in fake.topics["t"].partitions] == [Counter({b"1": 2, None: 2})] * 2


def test_rows_without_a_time_match_whatever_time_they_got(fake):
    """Null is the time of writing, another one in each try."""
    time = datetime.fromtimestamp(1_700_000_000, UTC)
    given = [{"value": b"a", "timestamp": time}, {"value": b"a", "timestamp": None}, {"value": b"b", "timestamp": None}]
    micro_batch = MicroBatch(fake)
    micro_batch.dies([[given[:2]]])
    micro_batch.attempt([[given[::-1]], []])
    assert micro_batch.counts() == Counter({b"a": 2, b"b": 1})


def test_topics_of_a_column_are_compared_one_by_one(fake):
    """Also one that has come into being since."""
    fake.create_topic("u", partitions=1)
    micro_batch = MicroBatch(fake, topic="")
    part = [[{"value": b"%d" % n, "topic": "t" if n % 2 else "u"} for n in range(at, at + 5)] for at in (0, 5, 10)]
    micro_batch.dies([part[:2]])
    fake.create_topic("v", partitions=1)
    new = [{"value": b"v", "topic": "v"}]
    micro_batch.attempt([part[:1], part[1:], [new]])
    assert micro_batch.counts() == once(range(1, 15, 2))
    assert micro_batch.stored("u") == [[b"%d" % n for n in range(0, 15, 2)]]
    assert micro_batch.stored("v") == [[b"v"]]


def test_a_task_without_rows_reports_what_it_stored_before(micro_batch: MicroBatch):
    """Fewer rows than tasks: what the second task has now was the first one's."""
    micro_batch.dies([batches(range(10)), []])
    assert micro_batch.attempt([[], batches(range(10))]) == 0
    assert micro_batch.counts() == once(range(10))


# --- concurrent tries of a task ---


def test_a_task_is_tried_again_while_the_first_try_is_still_at_work(fake):
    """After a lost executor or a speculative copy, one of the two tasks fails, and nothing is duplicated."""
    fake.create_topic("t", partitions=1)
    micro_batch = MicroBatch(fake)
    ends = micro_batch.ends()
    identity = TaskIdentity("a query", 3, 0)
    with TaskWriter(micro_batch.options, identity, ends) as slow:
        slow.write(table(rows(0, 1, 2)))
        slow.finish()
        micro_batch.task(0, [rows(5, 4, 3), rows(2, 1, 0)], ends)
        with pytest.raises(OtherRowsError, match="another try of task 0"):
            slow.write(table(rows(3, 4, 5)))
            slow.finish()
        slow._sent.clear()
    assert micro_batch.counts() == once(range(6))


def test_a_lost_answer_is_not_taken_for_another_try(fake, micro_batch: MicroBatch):
    """The producer sends the batch again; the leader says that it has it, and it is the same."""
    fake.faults.append(lost_answer)
    micro_batch.attempt([batches(range(10))])
    assert micro_batch.counts() == once(range(10))


def test_an_earlier_run_that_is_still_at_work_cannot_store_behind_the_next_one(micro_batch: MicroBatch):
    """With the same rows a task; its machine was cut off from the driver, and not from the brokers."""
    with TaskWriter(micro_batch.options, TaskIdentity("a query", 3, 0), micro_batch.ends()) as old:
        old.write(table(rows(0, 1)))
        old.finish()
        micro_batch.attempt([[rows(0, 1), rows(2, 3), rows(4, 5)]])
        old.write(table(rows(2, 3)))
        old.finish()
        old.write(table(rows(4, 5)))
        old.finish()
    assert micro_batch.counts() == once(range(6))


# --- all together ---


def cut(numbers: Sequence[int], tasks: int) -> list[Sequence[int]]:
    size = -(-len(numbers) // tasks)
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


class DyingWriter(TaskWriter):
    """Dies when it has stored this many batches."""

    lives = 1 << 30

    def _send(self, share: Share) -> None:
        if not self.lives:
            while self._sent:
                self._settle(self._sent.popleft())
            raise DriverDiedError
        self.lives -= 1
        super()._send(share)


@pytest.mark.parametrize("seed", range(8))
def test_tries_that_die_anywhere_double_and_lose_nothing(fake, seed):
    """Tries with rows in any order and divided in any way, that die after any batch, while partitions are added: no
    try is refused, no row is ever stored twice, and each is stored when a try ends.
    """
    chance = random.Random(seed)
    micro_batch = MicroBatch(fake)
    keyed = chance.random() < 0.5
    numbers = [chance.choice([n, n % 10]) for n in range(60)]
    wanted = Counter(b"%d" % n for n in numbers)
    for last in (False,) * 6 + (True,):
        mixed = numbers if chance.random() < 0.5 else chance.sample(numbers, len(numbers))
        parts = cut(mixed, chance.randint(1, 5))
        made = [batches(part, chance.choice([3, 10, 60]), keyed=keyed) for part in parts]
        micro_batch.lives = 1 << 30 if last else chance.choice([0, 1, 2, 3, 5, 8, 1 << 30])
        try:
            micro_batch.attempt(made, commits=last or chance.random() < 0.3)
            assert micro_batch.counts() == wanted
        except DriverDiedError:
            pass
        assert micro_batch.counts() <= wanted
        if chance.random() < 0.3:
            fake.topics["t"].partitions.append(FakePartition())


def test_the_ids_of_a_querys_tasks_are_a_family():
    """Each its own, apart from those of other queries; the last number is the driver's."""
    ids = {TaskIdentity(query, 0, task).producer_id for query in ("a", "b") for task in (0, 1, 5, DRIVER_TASK)}
    assert len(ids) == 8
    assert len({each >> 20 for each in ids}) == 2
    assert all(2**62 <= each < 2**63 for each in ids)


def test_the_ends_of_logs_are_noted_and_not_what_is_visible(fake, monkeypatch):
    """What an earlier try has stored may not be committed yet. Of a partition of which the leader or a replica in sync
    does not tell all records count as earlier ones.
    """
    fake.create_topic("u", partitions=1)
    logs = [LogInfo("t", 0, 1, True, 0, 0, 7, 5, 5, 1, 1, ""), LogInfo("t", 1, 1, True, 0, 0, 9, 9, 9, 1, 1, "gone")]
    asked = []

    def describe_logs(self, topic, *, brokers, timeout):
        asked.append((topic, brokers))
        return [log for log in logs if topic in (None, log.topic)]

    monkeypatch.setattr(Admin, "describe_logs", describe_logs)
    options = write_options({"headrace.bootstrap.servers": fake.address})
    assert log_ends(options) == {("t", 0): 7, ("t", 1): NO_END, ("u", 0): NO_END}
    named = write_options({"headrace.bootstrap.servers": fake.address, "topic": "t"})
    assert log_ends(named) == {("t", 0): 7, ("t", 1): NO_END}
    assert asked == [(None, [1]), ("t", [1])]


def test_brokers_of_an_earlier_release_are_recognised(fake, monkeypatch):
    """They do not know the question; nothing is written by guess."""

    def refuses(self, producer, family):
        raise InvalidRequestError("offset spec 7 is unknown")

    monkeypatch.setattr(FakePartition, "appended_by", refuses)
    unsupported = "brokers do not support the look-up of stored records: offset spec 7 is unknown"
    with pytest.raises(ConfigError, match=unsupported):
        MicroBatch(fake).task(0, [rows(1)], {})
    assert not MicroBatch(fake, idempotentRetries="false").task(0, [rows(1)], {})
