"""State of mirrors in the rows of their table."""

from __future__ import annotations

from functools import partial

import pytest
from headrace.client.base.errors import ConfigError
from headrace.client.mirror.mirrors import Mirrors
from headrace.client.mirror.rows import (
    AFTER_REPORTS,
    CommonEnd,
    MirrorSettings,
    PartitionReport,
    SourceAnswer,
    SourceQuestion,
    answers_to,
    describe,
    is_left_alone,
    mirror_names,
    open_questions,
    question_key,
)
from headrace.client.mirror.worker import _owner
from headrace.wire.errors import UnknownTopicError

SOURCE = {"bootstrap_servers": "west:7181"}


@pytest.mark.parametrize("name", ["west/eu", "", "w" * 101])
def test_a_name_that_no_topic_could_have_is_refused(name):
    """The rows of `west/eu` would be those of `west`: its workers count there, and copy nothing."""
    with Mirrors(bootstrap_servers="localhost:1", request_timeout_ms=100) as mirrors:
        for call in mirrors.create, partial(mirrors.fail_back, topics=["orders"]):
            with pytest.raises(ConfigError, match="cannot name a mirror"):
                call(name, settings=MirrorSettings(SOURCE))


def rows_of(name="west", **more):
    settings = MirrorSettings(SOURCE, topics=("orders-*",), bytes_per_second=7)
    report = PartitionReport(90, 100, 5_000, 7_000, "w0")
    return {
        f"mirror/{name}": {"settings": settings.to_text(), "cluster": "c1"},
        f"topic/{name}/orders-eu": {"source_id": "ab", "problem": ""},
        f"copies/{name}/orders-eu": {"0": report.to_text(), "11": report.to_text()},
        f"worker/{name}/w0": {"at_ms": "1"},
        "mirror/other": {"settings": settings.to_text()},
        "worker/other/w9": {"at_ms": "1"},
        **more,
    }


def test_a_mirror_is_described_by_its_own_rows():
    """Settings come back as they were; lag and age count from what the source answered last."""
    described = describe(rows_of(), "west")
    assert described is not None
    assert described.settings == MirrorSettings(SOURCE, topics=("orders-*",), bytes_per_second=7)
    assert (described.source_cluster, described.workers, described.lag) == ("c1", ["w0"], 20)
    (topic,) = described.topics
    assert (topic.name, topic.source_id, sorted(topic.partitions)) == ("orders-eu", "ab", [0, 11])
    assert (topic.partitions[0].lag, topic.partitions[0].lag_ms) == (10, 2_000)
    assert describe(rows_of(), "east") is None


def test_questions_and_answers_come_back_from_their_rows():
    """A question is open until it has an answer, is of a mirror that may not exist yet, and makes none."""
    asked = SourceQuestion("east", MirrorSettings(SOURCE), ("orders-eu",), is_compared=True)
    key = question_key("east", "1")
    rows = rows_of(
        **{key: {"asked": asked.to_text()}, question_key("east", "2"): {"answer/w0": SourceAnswer().to_text()}}
    )
    assert open_questions(rows, "w0") == {key: asked}
    assert key >= AFTER_REPORTS
    assert mirror_names(rows) == ["other", "west"]
    assert describe(rows, "east") is None
    answer = SourceAnswer({"orders-eu": {0: CommonEnd(1, 2, 3), 10: CommonEnd(-1, -1, 0)}})
    assert SourceAnswer.from_text(answer.to_text()) == answer
    refused = SourceAnswer.from_text(
        SourceAnswer(error=UnknownTopicError("there is no topic named 'x'")).to_text()
    ).error
    assert isinstance(refused, UnknownTopicError)
    assert refused.message == "there is no topic named 'x'"
    rows[key]["answer/w0"] = ""
    assert open_questions(rows, "w0") == {key: asked}
    assert answers_to(rows[key]) == {"w0": None}
    rows[key]["answer/w0"] = answer.to_text()
    assert open_questions(rows, "w0") == {}
    assert open_questions(rows, "w1") == {key: asked}
    assert answers_to(rows[key]) == {"w0": answer}


def test_a_report_without_an_answer_has_no_lag():
    """Unknown is not zero."""
    report = PartitionReport(-1, -1, 0, 0, "w0", "refused")
    assert (report.lag, report.lag_ms) == (-1, -1)
    assert PartitionReport.from_text(report.to_text()) == report


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MirrorSettings({**SOURCE, "api_key": "hrk_secret"}), "api_key of the source would be stored"),
        (MirrorSettings({"bootstrap_servers": "dir:events"}), "headrace promote copies a directory"),
        (MirrorSettings(SOURCE, topics=()), "names no topics"),
        (MirrorSettings(SOURCE, bytes_per_second=-1), "must not be negative"),
        (MirrorSettings(SOURCE, registry="http://east:8081"), "give both URLs"),
        (MirrorSettings(SOURCE, subjects=("common",)), "give both URLs"),
        (MirrorSettings(SOURCE, source_registry="west:8081", registry="http://east:8081"), "no http or https URL"),
        (MirrorSettings({**SOURCE, "no_such_setting": 1}), "no_such_setting"),
    ],
)
def test_settings_are_checked(settings, message):
    """Before they are stored: no secret, no directory, no unknown name."""
    with pytest.raises(ConfigError, match=message):
        settings.check()


def test_the_cluster_s_own_topics_are_not_copied():
    """Nor is the table of mirrors."""
    settings = MirrorSettings(SOURCE)
    names = ["orders", "__audit", "headrace-mirrors"]
    assert [name for name in names if settings.has_topic(name)] == ["orders"]
    assert MirrorSettings(SOURCE, groups=("billing-*",)).has_group("billing-1")


def test_subjects_of_the_topics_are_copied_and_those_that_patterns_name():
    """Only with registries; a subject is left alone from the promotion of its topic on."""
    registries = {"source_registry": "http://west:8081", "registry": "http://east:8081"}
    names = ["orders-eu-value", "orders-eu-key", "clicks-value", "orders-eu", "common.money"]

    def copied(**more):
        settings = MirrorSettings(SOURCE, topics=("orders-*",), **more)
        return [name for name in names if settings.has_subject(name)]

    assert copied() == []
    assert copied(**registries) == names[:2]
    assert copied(**registries, subjects=("common.*",)) == [*names[:2], names[4]]
    rows = rows_of(**{"subject/west/orders-eu-value": {"copied": "yes", "mode": "READONLY"}})
    described = describe(rows, "west")
    assert [(each.name, each.is_copied, each.mode) for each in described.subjects] == [
        ("orders-eu-value", True, "READONLY")
    ]
    assert not is_left_alone(described, "orders-eu-value")
    described.topics[0].is_promoted = True
    assert is_left_alone(described, "orders-eu-value")
    assert not is_left_alone(described, "common.money")


def test_reports_are_before_all_other_rows():
    """A worker reads the others alone."""
    keys = [*rows_of(), "subject/west/orders-eu-value"]
    assert [key for key in keys if key < AFTER_REPORTS] == ["copies/west/orders-eu"]


def test_few_partitions_move_when_a_worker_comes():
    """Every item has one owner; those that move have the new worker as their owner."""
    items = [f"orders/{number}" for number in range(1_000)]
    before = {item: _owner(item, ["w0", "w1"]) for item in items}
    after = {item: _owner(item, ["w0", "w1", "w2"]) for item in items}
    moved = [item for item in items if before[item] != after[item]]
    assert {after[item] for item in moved} == {"w2"}
    assert 250 < len(moved) < 420
    assert min(list(before.values()).count(worker) for worker in ("w0", "w1")) > 400
