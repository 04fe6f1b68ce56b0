"""Questions of operators about a source, and the answers of workers, through a table that is a dictionary."""

import asyncio
import dataclasses
import functools
import json
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from headrace.client.admin.partition_calls import Fetched
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import Pause
from headrace.client.mirror import answers, mirrors_async, source_questions_async, workers
from headrace.client.mirror.copying import end_tasks
from headrace.client.mirror.followed_topics import FollowedTopics
from headrace.client.mirror.mirrors_async import AsyncMirrors
from headrace.client.mirror.rows import (
    CommonEnd,
    MirrorSettings,
    SourceAnswer,
    SourceQuestion,
    answer_column,
    answers_to,
    open_questions,
)
from headrace.client.mirror.source_questions_async import AsyncSourceQuestions
from headrace.client.mirror.workers import _Workers, run_workers
from headrace.client.table.row_writes import checked_ttl_ms
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.columns import encode_batch
from headrace.wire.errors import (
    DivergedLogError,
    InvalidConfigError,
    InvalidRequestError,
    Outcome,
    TimedOutError,
    TransportError,
    UnknownTopicError,
)
from headrace.wire.ids import TopicPartition

SETTINGS = MirrorSettings({"bootstrap_servers": "west:7181"}, topics=("orders*",))


class Row(dict):
    """Row of the table with its key."""

    def __init__(self, key, columns):
        super().__init__(columns)
        self.key = key.encode()


class FakeTable:
    """Table of mirrors."""

    def __init__(self):
        self.rows = {}

    async def put(self, key, columns, *, ttl=None):
        checked_ttl_ms(ttl)
        self.rows.setdefault(key, {}).update(columns)

    async def get(self, key):
        return self.rows.get(key)

    async def delete(self, key):
        self.rows.pop(key, None)

    async def scan(self, start=""):
        for key, columns in sorted(self.rows.items()):
            if key >= start:
                yield Row(key, columns)


class FakeAdmin:
    """Cluster; `topics` has the ends of each topic's partitions."""

    def __init__(self, topics):
        self.topics = topics
        self.taken = set()
        """Topics that are no mirrors."""
        self.promoted = {}
        """Ends of each topic when producers were accepted."""
        self.mirrors = {}
        """Mirrors of topics, where it is not `west`."""
        self.partitions = []
        """Partitions of each topic with their leaders."""

    async def list_topics(self):
        return list(self.topics)

    async def describe_topic(self, name):
        return SimpleNamespace(topic_id=name.encode(), partitions=self.partitions)

    async def create_topic(self, *arguments, **more):
        pass

    async def list_offsets(self, topic, which):
        if topic not in self.topics:
            raise UnknownTopicError(f"no topic {topic}")
        ends = self.topics[topic] if which == "latest" else [0] * len(self.topics[topic])
        return {TopicPartition(topic, number): SimpleNamespace(offset=end) for number, end in enumerate(ends)}

    async def describe_config(self, topic):
        if topic not in self.topics and topic not in self.taken:
            raise UnknownTopicError(f"no topic {topic}")
        is_ordinary = topic in self.promoted or topic in self.taken
        return {"mirror": SimpleNamespace(value="" if is_ordinary else self.mirrors.get(topic, "west"))}

    async def alter_config(self, topic, settings=None, unset=()):
        if unset:
            self.promoted[topic] = list(self.topics[topic])
        if settings:
            self.taken.discard(topic)
            self.promoted.pop(topic, None)
            self.mirrors[topic] = settings["mirror"]


class Clock:
    """Time that passes only while a client waits."""

    def __init__(self):
        self.now = 0.0
        self.time_ns = time.time_ns

    def monotonic(self):
        return self.now


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(mirrors_async, "time", clock)
    monkeypatch.setattr(source_questions_async, "time", clock)
    return clock


def mirrors_of(topics, clock, waited, **settings):
    """Return a client of a cluster; `waited` is called, with it, each time that it waits."""
    mirrors = AsyncMirrors(**{"bootstrap_servers": "east:7181"} | settings)
    mirrors.admin, mirrors._table = FakeAdmin(topics), FakeTable()

    async def run_step(pause):
        clock.now += pause.seconds
        await waited(mirrors)

    mirrors._connections = SimpleNamespace(run_step=run_step)
    mirrors._questions = AsyncSourceQuestions(mirrors._table, mirrors._connections)
    mirrors._table.rows["mirror/west"] = {"settings": SETTINGS.to_text()}
    for topic in topics:
        mirrors._table.rows[f"topic/west/{topic}"] = {"source_id": "01", "problem": ""}
    return mirrors


class FakeSide:
    """Connections to one of the clusters."""

    def __init__(self, clusters, settings):
        """`clusters` has the topics of each by its address."""
        self.admin = FakeAdmin(clusters[settings["bootstrap_servers"]])

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


async def answered(mirrors, worker, answer=None):
    """Store that a worker has begun to answer each question, or its answer."""
    for key in [key for key in mirrors._table.rows if key.startswith("question/")]:
        await mirrors.note_answer(key, worker, answer.to_text() if answer else "", answers.ANSWER_LIVES)


def ends(**topics):
    """Return an answer with the ends of partitions at the source."""
    return SourceAnswer(
        {topic: {number: CommonEnd(-1, -1, end) for number, end in enumerate(ends)} for topic, ends in topics.items()}
    )


def test_a_planned_switch_waits_for_partitions_and_topics_that_the_mirror_lacks(clock):
    """The source has got them in the last seconds: a partition, an empty one, and topics that no table has yet."""
    here = {"orders": [5]}
    steps = iter([[5, 0], [5, 3], [5, 3, 0]])

    async def waited(mirrors):
        await answered(mirrors, "w0", ends(orders=[5, 3, 0], orders2=[4], orders3=[0]))
        if clock.now > 1:
            here["orders"] = next(steps, [5, 3, 0])
        if clock.now > 3:
            here["orders2"] = [min(4, int(clock.now))]
            here["orders3"] = [0]
        if clock.now > 6:
            for topic in ("orders2", "orders3"):
                mirrors._table.rows[f"topic/west/{topic}"] = {"source_id": "02", "problem": ""}

    mirrors = mirrors_of(here, clock, waited)
    promoted = asyncio.run(mirrors.promote("west", wait=True))
    assert [topic.name for topic in promoted] == ["orders", "orders2", "orders3"]
    assert mirrors.admin.promoted == {"orders": [5, 3, 0], "orders2": [4], "orders3": [0]}


def test_a_switch_of_one_topic_asks_for_no_other(clock):
    """Nor are topics asked for that are promoted already, or that the mirror does not copy."""
    asked = []

    async def waited(mirrors):
        asked.extend((each.topics, each.is_all) for each in open_questions(mirrors._table.rows, "w0").values())
        await answered(mirrors, "w0", ends(orders=[5], orders1=[9], orders2=[9]))

    mirrors = mirrors_of({"orders": [5], "orders1": [0], "orders2": [0]}, clock, waited)
    mirrors._table.rows["topic/west/orders1"]["promoted_ms"] = "1"
    mirrors._table.rows["topic/west/orders2"]["problem"] = "another topic has the name here"
    mirrors.admin.taken.add("orders2")
    assert [topic.name for topic in asyncio.run(mirrors.promote("west", ["orders"], wait=True))] == ["orders"]
    asyncio.run(mirrors.promote("west", wait=True))
    assert asked == [(("orders",), False), ((), True)]


PASSING = "describe_topic: no answer within 30 s"


@pytest.mark.parametrize("topics", [None, ["orders"]])
def test_a_planned_switch_waits_for_a_topic_with_a_problem_that_passes(clock, topics):
    """Its copy has stopped until it is compared with the source again: it lacks records until then."""
    here = {"orders": [0], "orders1": [5]}

    async def waited(mirrors):
        await answered(mirrors, "w0", ends(orders=[9], orders1=[5]))
        if clock.now > 10:
            mirrors._table.rows["topic/west/orders"]["problem"] = ""
        if clock.now > 12:
            here["orders"] = [9]

    mirrors = mirrors_of(here, clock, waited)
    mirrors._table.rows["topic/west/orders"]["problem"] = PASSING
    promoted = asyncio.run(mirrors.promote("west", topics, wait=True))
    assert all(topic.is_promoted for topic in promoted)
    assert mirrors.admin.promoted["orders"] == [9]


@pytest.mark.parametrize("topics", [None, ["orders"]])
@pytest.mark.parametrize("exists", [True, False])
def test_a_planned_switch_fails_for_a_topic_with_a_problem_that_lasts(clock, topics, exists):
    """At the deadline, with its name and its problem, and nothing is promoted: its records would be lost."""

    async def waited(mirrors):
        await answered(mirrors, "w0", ends(orders=[5], orders1=[5]))

    mirrors = mirrors_of({"orders1": [5]} | ({"orders": [5]} if exists else {}), clock, waited)
    mirrors._table.rows["topic/west/orders"] = {"source_id": "01", "problem": "the setting x is unknown here"}
    with pytest.raises(TimedOutError, match="topic orders is not copied: the setting x is unknown here"):
        asyncio.run(mirrors.promote("west", topics, wait=True))
    assert not mirrors.admin.promoted
    assert clock.now == pytest.approx(60, abs=0.5)


@pytest.mark.parametrize("topics", [None, ["orders", "orders1"]])
def test_a_planned_switch_does_not_wait_for_what_the_source_does_not_have(clock, topics):
    """A topic that was deleted there is promoted as it is, with its problem. The question does not name it: it would
    fail for a topic that does not exist."""
    asked, gone = [], "the topic is not at the source any more"

    async def waited(mirrors):
        asked.extend(each.topics for each in open_questions(mirrors._table.rows, "w0").values())
        await answered(mirrors, "w0", ends(orders1=[5], orders2=[7]) if topics else ends(orders1=[5]))

    mirrors = mirrors_of({"orders": [3], "orders1": [5]}, clock, waited)
    mirrors._table.rows["topic/west/orders"]["problem"] = gone
    promoted = asyncio.run(mirrors.promote("west", topics, wait=True))
    assert [(topic.name, topic.problem) for topic in promoted] == [("orders", gone), ("orders1", "")]
    assert asked == [("orders1",)]


def test_a_planned_switch_fails_for_a_topic_that_the_mirror_leaves_out(clock):
    """At once: its patterns were changed, and the topic is neither copied nor promoted."""

    async def waited(mirrors):
        await answered(mirrors, "w0", ends(orders=[5]))

    mirrors = mirrors_of({"orders": [5], "clicks": [5]}, clock, waited)
    mirrors._table.rows["topic/west/clicks"]["problem"] = "the mirror leaves it out"
    with pytest.raises(InvalidRequestError, match="topic clicks of the source is not copied: the mirror leaves it out"):
        asyncio.run(mirrors.promote("west", wait=True))
    assert not mirrors.admin.promoted


def test_an_answer_about_all_topics_has_new_ones_of_the_source(monkeypatch):
    """Those that match the mirror, and are in no table; of one topic there is one answer."""
    clusters = {"west:7181": {"orders": [5], "orders2": [4], "clicks": [1]}, "east": {}}
    monkeypatch.setattr(answers, "Side", functools.partial(FakeSide, clusters))

    def topics(*, is_all):
        question = SourceQuestion("west", SETTINGS, ("orders",), is_compared=False, is_all=is_all)
        return sorted(asyncio.run(answers._answered(question, {"bootstrap_servers": "east"})).ends)

    assert topics(is_all=True) == ["orders", "orders2"]
    assert topics(is_all=False) == ["orders"]


def workers_of(mirrors):
    """Return the workers of a process that copies the mirror `west`, and answers."""
    settings = {"bootstrap_servers": "east:7181"}
    return _Workers(None, settings, mirrors, "w0", lambda name, described: None)


def asked_of(mirrors, key="question/west/1", **more):
    """Store a question."""
    question = SourceQuestion("west", SETTINGS, ("orders",), is_compared=False)
    mirrors._table.rows[key] = {"asked": question.to_text(), **more}


async def never(*_):
    """Wait without an end."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("asked", ["", "7", "[]", '["{}", ["orders"], false]', '["no", 3, false]'])
def test_a_question_that_cannot_be_read_ends_no_worker(clock, monkeypatch, caplog, asked):
    """It is logged once, and the others are answered."""
    monkeypatch.setattr(workers.MirrorWorker, "run", never)
    monkeypatch.setattr(answers, "_answered", lambda question, settings: done(ends(orders=[5])))
    mirrors = mirrors_of({"orders": [5]}, clock, never)
    mirrors._table.rows["question/west/0"] = {"asked": asked}
    asked_of(mirrors)

    async def run():
        process = workers_of(mirrors)
        for _ in range(3):
            await process.look()
            await asyncio.gather(*process._answering.values())
        assert list(process._copying) == ["west"]
        await process.stop()

    asyncio.run(run())
    assert "answer" in str(mirrors._table.rows["question/west/1"])
    assert [record.getMessage() for record in caplog.records] == [
        "question/west/0 of the table of mirrors cannot be read, and is not answered"
    ]


async def done(result):
    return result


def test_a_question_of_a_newer_release_is_answered():
    """What it has more than this release knows is left out."""
    question = SourceQuestion("west", SETTINGS, ("orders",), is_compared=True, is_all=True)
    newer = json.dumps([*json.loads(question.to_text()), "more"])
    older = json.dumps(json.loads(question.to_text())[:3])
    found = open_questions({"question/west/0": {"asked": newer}, "question/west/1": {"asked": older}}, "w0")
    assert list(found.values()) == [question, dataclasses.replace(question, is_all=False)]


def test_an_unexpected_error_ends_no_process(monkeypatch, caplog):
    """It is logged, once while it is the same, and the next look follows; a cancellation ends all."""
    looks = iter([ValueError("no mirror"), ValueError("no mirror"), None, asyncio.CancelledError()])
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0)

    async def look(process):
        if (error := next(looks)) is not None:
            raise error

    monkeypatch.setattr(_Workers, "look", look)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_workers(None, {"bootstrap_servers": "east:7181"}))
    assert [record.exc_info[1].args for record in caplog.records] == [("no mirror",)]


def test_an_answer_that_cannot_be_stored_is_tried_again(clock, monkeypatch, caplog):
    """At the next look, while the question is there; the failure is logged."""
    monkeypatch.setattr(workers.MirrorWorker, "run", never)
    monkeypatch.setattr(answers, "_answered", lambda question, settings: done(ends(orders=[5])))
    mirrors = mirrors_of({"orders": [5]}, clock, never)
    asked_of(mirrors)
    stored, failures = mirrors._table.put, iter([TransportError("no broker", outcome=Outcome.UNKNOWN), ValueError("?")])

    async def put(*arguments, **more):
        if (error := next(failures, None)) is not None:
            raise error
        await stored(*arguments, **more)

    mirrors._table.put = put

    async def run():
        process = workers_of(mirrors)
        for _ in range(3):
            await process.look()
            await asyncio.gather(*process._answering.values())
        await process.stop()

    asyncio.run(run())
    assert "answer" in str(mirrors._table.rows["question/west/1"])
    assert len(caplog.records) == 2
    assert all("the answer about the source of mirror west" in record.getMessage() for record in caplog.records)


BAD = SourceAnswer(error=InvalidConfigError("ssl_cafile: there is no file ca.crt", outcome=Outcome.UNKNOWN))


@pytest.mark.parametrize("good_at", [0, 4, 30])
def test_a_good_answer_is_better_than_an_error(clock, good_at):
    """A worker without the files has failed at once; another one has begun, and answers, or does so within seconds."""

    async def waited(mirrors):
        await answered(mirrors, "w0", BAD)
        if good_at > 5:
            await answered(mirrors, "w1")
        if clock.now >= good_at:
            await answered(mirrors, "w1", ends(orders=[5]))

    mirrors = mirrors_of({"orders": [5]}, clock, waited)
    (promoted,) = asyncio.run(mirrors.promote("west", wait=True))
    assert promoted.is_promoted
    assert clock.now == pytest.approx(max(good_at, 0.2), abs=0.4)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("knows_at", [1, 60])
def test_a_promotion_ends_when_leaders_take_what_producers_send(clock, monkeypatch, knows_at, fails):
    """etcd tells them of it: a producer that began before would be refused. What cannot be asked is not waited for."""
    asked = []

    class Calls:
        def __init__(self, topic, topic_id, config):
            self.topic = topic

        def append(self, number, batches, *, deletions_end):
            asked.append((self.topic, number, *batches))
            if fails:
                raise TransportError("it is away", outcome=Outcome.UNKNOWN)
            if clock.now >= knows_at:
                raise InvalidRequestError("it is no mirror")
            yield Pause(0)

    async def waited(_):
        pass

    monkeypatch.setattr(mirrors_async, "PartitionCalls", Calls)
    mirrors = mirrors_of({"orders": [5, 5]}, clock, waited)
    mirrors.admin.partitions = [SimpleNamespace(partition=number, leader_id=number - 1) for number in range(2)]
    mirrors._table.rows["topic/west/gone"] = {"source_id": "02", "problem": ""}
    gone, promoted = asyncio.run(mirrors.promote("west"))
    assert (gone.name, gone.is_promoted, promoted.is_promoted) == ("gone", False, True)
    assert set(asked) == {("orders", 1)}, "partition 0 has no leader"
    assert clock.now == pytest.approx(0 if fails else min(knows_at, mirrors_async._KNOWN_SECONDS), abs=0.3)


@pytest.mark.parametrize("is_working", [False, True])
def test_an_error_is_raised_once_no_other_worker_is_known_to_work(clock, is_working):
    """Nothing was applied, and the question is gone; at the latest the error is raised at the deadline."""

    async def waited(mirrors):
        await answered(mirrors, "w0", BAD)
        if is_working:
            await answered(mirrors, "w1")

    mirrors = mirrors_of({"orders": [5]}, clock, waited)
    with pytest.raises(InvalidConfigError, match="there is no file") as raised:
        asyncio.run(mirrors.promote("west", wait=True, timeout=30))
    assert raised.value.outcome is Outcome.NOT_APPLIED
    assert not mirrors.admin.promoted
    assert sorted(mirrors._table.rows) == ["mirror/west", "topic/west/orders"]
    assert clock.now == pytest.approx(30 if is_working else 5, abs=0.5)


def test_each_worker_answers_for_itself(clock, monkeypatch):
    """An answer of another one does not keep it from its own; a second process has another name."""
    monkeypatch.setattr(workers.MirrorWorker, "run", never)
    results = iter([done(BAD), done(ends(orders=[5]))])
    monkeypatch.setattr(answers, "_answered", lambda question, settings: next(results))
    mirrors = mirrors_of({"orders": [5]}, clock, never)
    asked_of(mirrors)
    names = []

    async def run():
        for _ in range(2):
            process = _Workers(None, {"bootstrap_servers": "east:7181"}, mirrors, "", lambda name, described: None)
            names.append(process.worker_id)
            for _ in range(2):
                await process.look()
                await asyncio.gather(*process._answering.values())
            await process.stop()

    asyncio.run(run())
    found = answers_to(mirrors._table.rows["question/west/1"])
    assert [found[name].error is None for name in names] == [False, True]


@pytest.mark.parametrize("begins", [False, True])
def test_a_comparison_that_a_worker_has_begun_has_the_whole_time(clock, begins):
    """Without one that has begun within a minute it fails then; the error says which it was."""

    async def waited(mirrors):
        if begins:
            await answered(mirrors, "w1")

    mirrors = mirrors_of({"orders": [5]}, clock, waited)
    with pytest.raises(TimedOutError, match="worker w1.*not finished" if begins else "no worker.*start one"):
        asyncio.run(mirrors.fail_back("west", SETTINGS, ["orders"], timeout=300))
    assert clock.now == pytest.approx(300 if begins else 60, abs=0.5)
    assert not [key for key in mirrors._table.rows if key.startswith("question/")]


def test_a_worker_that_dies_while_it_compares_is_not_waited_for(clock):
    """Its note expires; another one has a minute to begin, such as its successor."""

    async def waited(mirrors):
        await answered(mirrors, "w1")
        if clock.now > 100:
            for columns in mirrors._table.rows.values():
                columns.pop(answer_column("w1"), None)

    mirrors = mirrors_of({"orders": [5]}, clock, waited)
    with pytest.raises(TimedOutError, match=r"no worker of mirror west answers.*start one"):
        asyncio.run(mirrors.fail_back("west", SETTINGS, ["orders"], timeout=600))
    assert clock.now == pytest.approx(160, abs=0.5)


def test_a_worker_notes_that_it_still_compares(clock, monkeypatch):
    """Again and again with a short life, and never after its answer, which it would replace."""
    monkeypatch.setattr(answers, "RENEW_SECONDS", 0.001)
    notes, comparing = [], asyncio.Event()

    async def compare(question, settings):
        await comparing.wait()
        return ends(orders=[5])

    async def note(key, worker, text, lives):
        notes.append((bool(text), lives))
        if len(notes) == 3:
            comparing.set()

    monkeypatch.setattr(answers, "_answered", compare)
    question = SourceQuestion("west", SETTINGS, ("orders",), is_compared=True)
    asyncio.run(answers.answer(SimpleNamespace(note_answer=note), "question/west/1", "w1", question, {}))
    assert notes == [(False, answers.WORKING_LIVES)] * 3 + [(True, answers.ANSWER_LIVES)]


def test_a_new_topic_whose_name_is_taken_here_is_named(clock):
    """At once: no copy of it will ever reach the source's end."""

    async def waited(mirrors):
        await answered(mirrors, "w0", ends(orders=[5], taken=[4]))

    here = {"orders": [5]}
    mirrors = mirrors_of(here, clock, waited)
    mirrors.admin.taken.add("taken")
    with pytest.raises(InvalidRequestError, match="topic taken of the source is not copied: another one has the name"):
        asyncio.run(mirrors.promote("west", wait=True))
    assert clock.now < 5
    assert not mirrors.admin.promoted


def test_failing_back_waits_ten_minutes_by_default(clock):
    """A comparison of many partitions far away takes that long."""

    async def waited(mirrors):
        await answered(mirrors, "w1", SourceAnswer({"orders": {0: CommonEnd(5, 5, 7)}}) if clock.now > 590 else None)

    mirrors = mirrors_of({"orders": [5]}, clock, waited)
    assert asyncio.run(mirrors.fail_back("west", SETTINGS, ["orders"])) == {"orders": {0: (5, 5, 7)}}


async def failed_back(mirrors, topic, **more):
    """Fail back a topic of this cluster, whose log is equal to that of the source."""
    mirrors.admin.taken.add(topic)
    settings = MirrorSettings(SETTINGS.source, topics=(topic,), **more)
    await mirrors.fail_back("back", settings, [topic])


async def all_equal(mirrors):
    """Answer that the logs are equal."""
    equal = {topic: {0: CommonEnd(5, 5, 5)} for topic in mirrors.admin.topics}
    await answered(mirrors, "w0", SourceAnswer(equal))


def test_failing_back_adds_topics_to_a_mirror_that_exists(clock):
    """Those of an earlier call are copied still, and its other settings stay unless they are given again."""
    mirrors = mirrors_of({"orders": [5], "clicks": [5]}, clock, all_equal)

    async def run():
        await failed_back(mirrors, "orders", bytes_per_second=7, replication_factor=2)
        await failed_back(mirrors, "clicks", bytes_per_second=9)
        await failed_back(mirrors, "clicks")
        return (await mirrors.describe("back")).settings

    wanted = MirrorSettings(SETTINGS.source, ("orders", "clicks"), bytes_per_second=9, replication_factor=2)
    assert asyncio.run(run()) == wanted


def test_failing_back_forgets_an_earlier_promotion_of_the_topic(clock):
    """Its row would keep the workers from copying it, and producers are refused."""
    mirrors = mirrors_of({"orders": [5], "clicks": [5]}, clock, all_equal)

    async def run():
        for topic in ("orders", "clicks"):
            await failed_back(mirrors, topic)
            await mirrors.note_topic("back", topic, "01", "")
        await mirrors.promote("back", ["clicks"])
        await failed_back(mirrors, "clicks")
        return {topic.name: topic.is_promoted for topic in (await mirrors.describe("back")).topics}

    assert asyncio.run(run()) == {"orders": False}
    assert "clicks" not in mirrors.admin.promoted


async def differ(mirrors):
    """Answer that a record of each topic is in this cluster only."""
    await answered(mirrors, "w0", SourceAnswer({topic: {0: CommonEnd(4, 5, 5)} for topic in mirrors.admin.topics}))


@pytest.mark.parametrize("exists", [False, True])
def test_failing_back_again_accepts_producers_where_a_killed_call_refused_them(clock, exists):
    """The setting of the topic is that of the call that was killed: no mirror has a row of the topic."""
    mirrors = mirrors_of({"orders": [5]}, clock, differ)
    mirrors.admin.mirrors["orders"] = "back"
    if exists:
        mirrors._table.rows["mirror/back"] = {"settings": SETTINGS.to_text()}
    with pytest.raises(DivergedLogError):
        asyncio.run(mirrors.fail_back("back", SETTINGS, ["orders"]))
    assert "orders" in mirrors.admin.promoted


def test_failing_back_again_ends_no_copy(clock):
    """A topic that the mirror copies already stays its copy if the call fails."""
    mirrors = mirrors_of({"orders": [5]}, clock, differ)
    with pytest.raises(DivergedLogError):
        asyncio.run(mirrors.fail_back("west", SETTINGS, ["orders"]))
    assert not mirrors.admin.promoted


def test_a_topic_that_still_refuses_producers_is_named(clock, monkeypatch):
    """Where a fail-back fails, and its clean-up for one topic, too: the others are cleaned up, and the first error is
    raised."""
    mirrors = mirrors_of({"orders": [5], "clicks": [5]}, clock, differ)
    mirrors.admin.taken |= {"orders", "clicks"}
    alter = mirrors.admin.alter_config

    async def alter_config(topic, settings=None, unset=()):
        if topic == "orders" and unset:
            raise TransportError("no coordinator")
        await alter(topic, settings, unset)

    mirrors.admin.alter_config = alter_config
    with pytest.raises(DivergedLogError, match="refused: headrace topic alter orders --unset mirror"):
        asyncio.run(mirrors.fail_back("back", SETTINGS, ["orders", "clicks"]))
    assert list(mirrors.admin.promoted) == ["clicks"]


def test_a_promotion_of_no_mirror_says_how_producers_are_accepted(clock):
    """A killed fail-back leaves topics that name a mirror which does not exist."""
    mirrors = mirrors_of({"orders": [5]}, clock, done)
    with pytest.raises(UnknownTopicError, match=r"no mirror 'back'.*headrace topic alter TOPIC --unset mirror"):
        asyncio.run(mirrors.promote("back"))


@pytest.mark.parametrize(
    ("columns", "source", "message"),
    [
        ({"promoted_ms": "1"}, SETTINGS.source, "mirror back was promoted"),
        ({}, {"bootstrap_servers": "north:7181"}, "mirror back has another source, west:7181"),
    ],
)
def test_failing_back_is_refused_where_the_mirror_cannot_take_the_topic(clock, columns, source, message):
    """Before producers are refused, and before a worker compares anything."""
    mirrors = mirrors_of({"orders": [5]}, clock, all_equal)
    mirrors.admin.taken.add("orders")
    mirrors._table.rows["mirror/back"] = {"settings": SETTINGS.to_text(), **columns}
    with pytest.raises(InvalidRequestError, match=message):
        asyncio.run(mirrors.fail_back("back", MirrorSettings(source), ["orders"]))
    assert mirrors.admin.taken == {"orders"}
    assert clock.now == 0


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_topic_that_is_created_during_a_promotion_is_promoted(clock, is_noted):
    """After the promotion has read the topics, and before a worker can read that the mirror is promoted."""
    here = {"orders": [5]}
    mirrors = mirrors_of(here, clock, done)
    stored, rows, new = mirrors._table.put, mirrors._table.rows, {"source_id": "02", "problem": ""}
    if is_noted:
        rows["topic/west/orders1"] = new

    async def put(key, columns, *, ttl=None):
        if key == "mirror/west":
            rows["topic/west/orders1"], here["orders1"] = new, [0]
        await stored(key, columns, ttl=ttl)

    mirrors._table.put = put
    promoted = asyncio.run(mirrors.promote("west"))
    assert [(topic.name, topic.is_promoted) for topic in promoted] == [("orders", True), ("orders1", True)]
    assert list(mirrors.admin.promoted) == ["orders", "orders1"]


class NewTopicAtSource:
    """Source with one topic."""

    async def list_topics(self):
        return ["orders"]

    async def describe_topic(self, name):
        return SimpleNamespace(topic_id=b"\1", partitions=[0])

    async def describe_config(self, name):
        return {}


@pytest.mark.parametrize("ends", ["answered", "lost", "cancelled"])
@pytest.mark.parametrize("promoted", ["mirror/west", "topic/west/orders"])
def test_a_worker_promotes_a_topic_that_it_creates_during_a_promotion(clock, ends, promoted):
    """Also where the answer is lost, and where the worker is stopped because the mirror was promoted."""
    here, noted = {}, {}
    mirrors = mirrors_of(here, clock, done)

    async def run():
        is_creating, may_end = asyncio.Event(), asyncio.Event()

        async def create_topic(name, *_):
            noted.update(mirrors._table.rows.get("topic/west/orders", {}))
            mirrors._table.rows.setdefault(promoted, {})["promoted_ms"] = "1"
            is_creating.set()
            await may_end.wait()
            here[name] = [0]
            if ends == "lost":
                raise TransportError("no answer", outcome=Outcome.UNKNOWN)

        mirrors.admin.create_topic = create_topic
        described = await mirrors.describe("west")
        following = asyncio.create_task(FollowedTopics("west", NewTopicAtSource(), mirrors).follow(described))
        await is_creating.wait()
        ending = asyncio.create_task(end_tasks([following] if ends == "cancelled" else []))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([following, ending])
        return (await mirrors.describe("west")).topics

    (topic,) = asyncio.run(run())
    assert noted == {"source_id": "01", "problem": ""}, "a promotion finds the topic before it exists"
    assert topic.is_promoted
    assert "orders" in mirrors.admin.promoted


@pytest.mark.parametrize(
    ("settings", "given", "used"),
    [
        ({}, "", "http://in-the-table:7370"),
        ({"bootstrap_servers": "localhost:7181", "api_key": "hrk_id1_secret1"}, "", None),
        (
            {"bootstrap_servers": "localhost:7181", "api_key": "hrk_id1_secret1"},
            "http://given:7370",
            "http://given:7370",
        ),
    ],
)
def test_an_api_key_is_sent_to_no_url_of_the_table(clock, monkeypatch, settings, given, used):
    """Workers may write the table. The topics are promoted in any case; the error says how to promote the subjects."""
    asked = []

    def registry(url, **settings):
        return SimpleNamespace(request=lambda method, path, *body: asked.append((url, settings.get("api_key"))))

    monkeypatch.setattr(mirrors_async, "SchemaRegistry", registry)
    mirrors = mirrors_of({"orders": [5]}, clock, done, **settings)
    urls = {"source_registry": "http://west:7370", "registry": "http://in-the-table:7370"}
    mirrors._table.rows["mirror/west"]["settings"] = dataclasses.replace(SETTINGS, **urls).to_text()
    mirrors._table.rows["subject/west/orders-value"] = {"copied": "yes", "mode": "READONLY"}
    if used is None:
        with pytest.raises(ConfigError, match=r"these subjects are not: orders-value.* --registry URL"):
            asyncio.run(mirrors.promote("west"))
    else:
        asyncio.run(mirrors.promote("west", registry=given))
    assert asked == ([(used, settings.get("api_key"))] if used else [])
    assert mirrors.admin.promoted == {"orders": [5]}


class ComparedSide(FakeSide):
    """Cluster whose partitions are asked for batches; counts the questions that wait at once."""

    waiting = most = 0

    def topic(self, name, topic_id):
        return SimpleNamespace(batch_with=lambda number, offset: number)

    async def run(self, number):
        ComparedSide.waiting += 1
        ComparedSide.most = max(ComparedSide.most, ComparedSide.waiting)
        for _ in range(20):
            await asyncio.sleep(0)
        ComparedSide.waiting -= 1
        if number == 19:
            raise TransportError("no broker")
        return number


def test_partitions_are_compared_together_in_a_bound(monkeypatch):
    """The error of one of them is the answer, as of a single one."""
    monkeypatch.setattr(ComparedSide, "most", 0)
    side = ComparedSide({"east": {"orders": [5] * 19, "clicks": [5] * 20}}, {"bootstrap_servers": "east"})
    found = asyncio.run(answers._compare("orders", side, side))
    assert found == {number: CommonEnd(5, 5, 5) for number in range(19)}
    assert ComparedSide.most == 8
    with pytest.raises(TransportError):
        asyncio.run(answers._compare("clicks", side, side))


class LogSide(FakeSide):
    """Cluster with one partition: where its log starts, and the chain value of the record at each offset."""

    def __init__(self, start, chain):
        self.start, self.chain = start, chain
        self.admin = self

    def topic(self, name, topic_id):
        return self

    async def describe_topic(self, name):
        return SimpleNamespace(topic_id=b"")

    async def list_offsets(self, topic, which):
        offset = len(self.chain) if which == "latest" else self.start
        return {TopicPartition(topic, 0): SimpleNamespace(offset=offset)}

    async def batch_with(self, number, offset):
        return (offset + 1, self.chain[offset]) if self.start <= offset < len(self.chain) else None

    async def fetch(self, number, offset, *, max_wait_ms, max_bytes):
        assert self.start <= offset <= len(self.chain)
        batches, crc = b"", None
        if offset < len(self.chain):
            previous, payload = self.chain[offset - 1], encode_batch([b"v"], base_timestamp_ms=0)
            head = stamp(
                read_header(payload), base_offset=offset, append_timestamp_ms=0, leader_epoch=0, previous_crc=previous
            )
            batches = bytes(head) + bytes(payload[STAMP_BYTES:])
        else:
            crc = self.chain[-1]
        return Fetched(batches, len(self.chain), self.start, 0, 0, crc)

    async def run(self, calling):
        return await calling


EQUAL = list(range(1, 9))
"""Chain values of eight records."""
OTHER = [*EQUAL[:4], 91, 92, 93, 94, 95, 96]
"""Those of a log with other records from offset 4 on."""


@pytest.mark.parametrize(
    ("here", "there", "common"),
    [
        ((0, EQUAL[:6]), (2, OTHER), 4),
        ((3, EQUAL[:6]), (1, EQUAL), 6),
        ((1, EQUAL[:6]), (8, OTHER), 1),
        ((1, EQUAL[:6]), (6, OTHER), 1),
        ((1, EQUAL[:6]), (6, EQUAL), 6),
        ((1, EQUAL[:6]), (6, EQUAL[:6]), 6),
        ((1, EQUAL[:6]), (6, OTHER[:6]), 1),
        ((1, EQUAL[:6]), (5, OTHER), 1),
        ((4, EQUAL[:6]), (0, EQUAL[:3]), 4),
        ((6, EQUAL[:6]), (8, OTHER), 6),
        ((6, EQUAL[:6]), (0, EQUAL[:5]), 5),
        ((0, []), (0, EQUAL), 0),
    ],
    ids=[
        "different from 4 on",
        "equal",
        "the source starts behind our end",
        "the source starts at our end, after other records",
        "the source starts at our end, after the same records",
        "the source is empty at our end, after the same records",
        "the source is empty at our end, after other records",
        "nothing of what both have is equal",
        "the source ends before our start",
        "no record here, the source starts behind our end",
        "no record here, the source ends before our end",
        "no record was ever here",
    ],
)
def test_records_that_are_not_known_to_be_equal_are_lost(here, there, common):
    """Where the source has deleted what could be compared, the log here is not said to be equal to it."""
    ours, theirs = LogSide(*here), LogSide(*there)
    found = asyncio.run(answers._compare("orders", theirs, ours))
    assert found == {0: CommonEnd(common, len(here[1]), len(there[1]))}


def test_lost_records_of_one_partition_are_not_made_up_for_by_another(clock):
    """An earlier release answers that a log is equal beyond its end."""

    async def waited(mirrors):
        await answered(
            mirrors, "w0", SourceAnswer({"orders": {0: CommonEnd(400, 450, 900), 1: CommonEnd(500, 450, 900)}})
        )

    mirrors = mirrors_of({"orders": [450, 450]}, clock, waited)
    with pytest.raises(DivergedLogError, match="the source lacks 50 records of topic orders"):
        asyncio.run(mirrors.fail_back("west", SETTINGS, ["orders"]))


@pytest.mark.parametrize(("timeout", "lives"), [(0, 1), (0.5, 1), (30, 30), (float("inf"), 86_400)])
def test_a_question_expires_whatever_the_timeout_is(clock, timeout, lives):
    """After a second at least, and a day at most; it is asked, and the call ends, with each timeout."""
    kept = []
    mirrors = mirrors_of({"orders": [5]}, clock, done)
    stored = mirrors._table.put

    async def put(key, columns, *, ttl=None):
        kept.append(ttl)
        await stored(key, columns, ttl=ttl)

    mirrors._table.put = put
    with pytest.raises(TimedOutError, match="no worker"):
        asyncio.run(mirrors.promote("west", wait=True, timeout=timeout))
    assert kept == [timedelta(seconds=lives)]
