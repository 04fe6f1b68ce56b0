"""`headrace topic describe`: leader, replicas, epochs, offsets, and how far each replica is behind."""

import json
from typing import Any

import pytest
from headrace.wire.errors import StorageFullError
from headrace.wire.ids import TopicPartition


@pytest.fixture
def clicks(held: Any) -> Any:
    """Three brokers, two partitions with three replicas each, ten records in the first."""
    held.start_brokers(1, 2, 3)
    held.add("clicks", 2, (1, 2, 3), 2)
    for _ in range(10):
        held.append("clicks", 0, b"v")
    return held


def partition(headrace: Any, number: int = 0) -> Any:
    return json.loads(headrace("topic", "describe", "clicks", "--output", "json").out)["partitions"][number]


def test_lag_is_what_the_leader_says(headrace: Any, clicks: Any) -> None:
    """In records and in ms, a replica and the greatest of the partition."""
    clicks.log_ends[TopicPartition("clicks", 0), 3] = 4
    clicks.change("clicks", 0, in_sync_replicas=(1, 2))
    found = partition(headrace)
    assert (found["lag_records"], found["lag_ms"], found["min_insync_replicas"]) == (6, 700, 2)
    assert [(each["broker_id"], each["in_sync"], each["lag_records"]) for each in found["replica_logs"]] == [
        (1, True, 0),
        (2, True, 0),
        (3, False, 6),
    ]
    assert [each["leader"] for each in found["replica_logs"]] == [True, False, False]
    assert [each["size_bytes"] for each in found["replica_logs"]] == [1000, 1000, 400]
    header, first, second = headrace("topic", "describe", "clicks").out.split("\n\n")[1].splitlines()
    headings = "PARTITION LEADER EPOCH REPLICAS IN SYNC START HIGH WATERMARK LOG END LAG LAG MS BYTES"
    assert " ".join(header.split()) == headings
    assert first.split() == ["0", "1", "4", "1,2,3", "1,2", "0", "10", "10", "6", "700", "1000"]
    assert second.split()[-3:] == ["0", "0", "0"]


def test_moves_eligible_leaders_and_unclean_elections_show_where_they_are(headrace: Any, clicks: Any) -> None:
    """Columns that are empty nearly always appear when they are not."""
    clicks.change("clicks", 1, replicas=(4, 1, 2, 3), adding_replicas=(4,), removing_replicas=(1, 2), unclean=True)
    clicks.change("clicks", 0, in_sync_replicas=(1,), eligible_leaders=(2,))
    out = headrace("topic", "describe", "clicks").out
    assert "+4 -1 -2" in out
    assert all(heading in out for heading in ("ELIGIBLE", "MOVING", "UNCLEAN"))
    found = partition(headrace, 1)
    assert (found["adding_replicas"], found["removing_replicas"], found["unclean"]) == ([4], [1, 2], True)
    assert json.loads(headrace("topic", "describe", "clicks", "--output", "json").out)["replication_factor"] == 3


def test_the_highest_compacted_offset_is_shown(headrace: Any, clicks: Any) -> None:
    """Of the replicas, which compact by themselves; without any there is no column."""
    clicks.compacted |= {(TopicPartition("clicks", 0), 1): 3, (TopicPartition("clicks", 0), 3): 7}
    found = partition(headrace)
    assert found["compacted_offset"] == 7
    assert [each["compacted_offset"] for each in found["replica_logs"]] == [3, 0, 7]
    assert "COMPACTED" in headrace("topic", "describe", "clicks").out


def test_every_replica_stands_in_the_wide_table(headrace: Any, clicks: Any) -> None:
    """The plain one stays one line a partition."""
    plain, wide = (headrace("topic", "describe", "clicks", "--output", each).out for each in ("table", "wide"))
    assert "PHI" not in plain
    table = next(section for section in wide.split("\n\n") if "PHI" in section)
    assert len(table.splitlines()) == 7


def test_a_replica_that_has_not_fetched_yet_speaks_for_itself(headrace: Any, clicks: Any) -> None:
    """The leader knows nothing of it in this epoch; its own log end does for the records, and no time is known."""
    where = TopicPartition("clicks", 0)
    clicks.log_ends[where, 3] = -1
    follower = partition(headrace)["replica_logs"][2]
    assert (follower["lag_ms"], follower["phi"]) == (None, None)


def test_a_dead_or_silent_broker_leaves_gaps(headrace: Any, clicks: Any) -> None:
    """A dead one is not asked; a silent one is named; what the others know is shown."""
    clicks.start_brokers(2, 3, 9)
    clicks.change("clicks", 0, leader_id=2, leader_epoch=5, in_sync_replicas=(2, 3))
    ended = headrace("topic", "describe", "clicks")
    assert (ended.code, ended.err) == (0, "")
    dead = partition(headrace)["replica_logs"][0]
    assert (dead["broker_id"], dead["size_bytes"], dead["log_end_offset"]) == (1, None, 10)
    assert partition(headrace, 1)["high_watermark"] is None
    clicks.failures["describe_logs"] = StorageFullError("the disk is full")
    assert headrace("topic", "describe", "clicks").err.splitlines() == [
        f"headrace: offsets and sizes are missing: broker {each} did not respond: the disk is full" for each in (2, 3)
    ]
