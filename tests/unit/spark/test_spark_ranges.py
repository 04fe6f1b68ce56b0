"""Ranges and offsets as plain functions: splitting, limits, losses, bounds, and what a checkpoint keeps."""

import pytest
from headrace.client.base.errors import ConfigError
from headrace.spark.ranges import OffsetRange, check_order, limited, split, within_log
from headrace.spark.starting_offsets import OffsetBound, offsets_bound, time_bound, times_bound, word_bound
from headrace.spark.stream_offsets import StreamOffsets, initial_offset, known_starts, parse_offsets, ranges_between
from headrace.wire.ids import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=6)


@given(sizes, st.integers(0, 40), st.integers(0, 200))
def test_split_parts_are_the_ranges_again(lengths, min_partitions, max_records):
    """In order, none empty, none too large, enough of them for that many records; even within one."""
    ranges = [OffsetRange(TopicPartition("t", n), 100 * n, 100 * n + size) for n, size in enumerate(lengths)]
    parts = split(ranges, min_partitions, max_records)
    offsets = [(part.where, offset) for part in parts for offset in range(part.start, part.end)]
    assert offsets == [(part.where, offset) for part in ranges for offset in range(part.start, part.end)]
    assert all(len(part) for part in parts)
    assert not max_records or all(len(part) <= max_records for part in parts)
    assert len(parts) >= min(min_partitions, sum(lengths))
    for where in {part.where for part in parts}:
        own = [len(part) for part in parts if part.where == where]
        assert max(own) - min(own) <= 1


def test_without_limits_there_is_a_task_a_partition():
    """Whatever its size."""
    ranges = [OffsetRange(A0, 0, 10_000_000), OffsetRange(A1, 5, 5), OffsetRange(B0, 0, 1)]
    assert split(ranges, 0, 0) == [ranges[0], ranges[2]]


@given(sizes, st.integers(1, 3000))
def test_a_limit_is_met_exactly_and_shared(lengths, limit):
    """All together as many as the limit, none more than it has, none left out where there is one for each."""
    starts = {TopicPartition("t", n): 7 * n for n in range(len(lengths))}
    ends = {where: start + size for (where, start), size in zip(starts.items(), lengths, strict=True)}
    taken = {where: end - starts[where] for where, end in limited(starts, ends, limit).items()}
    assert sum(taken.values()) == min(limit, sum(lengths))
    assert all(0 <= count <= size for count, size in zip(taken.values(), lengths, strict=True))
    if limit >= len(lengths):
        assert all(count for count, size in zip(taken.values(), lengths, strict=True) if size)


def test_shares_go_by_backlog():
    """Three quarters to whom three quarters wait for; new partitions start at 0."""
    assert limited({A0: 100}, {A0: 400, A1: 100}, 40) == {A0: 130, A1: 10}


def test_records_removed_by_retention_are_cut_off_and_reported():
    """Partition, wanted and earliest offset, and how many: only by where the log starts."""
    ranges = [OffsetRange(A0, 5, 20), OffsetRange(A1, 5, 8), OffsetRange(B0, 3, 3)]
    kept, losses = within_log(ranges, {A0: 12, A1: 50, B0: 9})
    assert kept == [OffsetRange(A0, 12, 20), OffsetRange(A1, 50, 50), OffsetRange(B0, 3, 3)]
    assert [str(loss) for loss in losses] == [
        "a-0: offset 5 was requested and the log starts at 12, 7 records were removed",
        "a-1: offset 5 was requested and the log starts at 50, 3 records were removed",
    ]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (OffsetRange(A0, 6, 5), "startingOffsets: 6 for a-0 is after endingOffsets, 5"),
        (OffsetRange(A0, 11, 11), "startingOffsets: 11 for a-0 is past its end, 10"),
        (OffsetRange(A0, 5, 11), "endingOffsets: 11 for a-0 is past its end, 10"),
    ],
)
def test_edges_of_a_batch_are_in_order_and_in_the_log(part, says):
    """The error names the option."""
    with pytest.raises(ConfigError, match=says):
        check_order([part], {A0: 10}, "startingOffsets", "endingOffsets")
    check_order([OffsetRange(A0, 10, 10)], {A0: 10}, "startingOffsets", "endingOffsets")


def test_an_edge_is_an_offset_once_the_log_is_known():
    """Words, offsets with their two special ones, and times."""
    earliest, latest = {A0: 3, A1: 4}, {A0: 30, A1: 40}

    def at(bound: OffsetBound, times=None):
        return [bound.offset(where, earliest, latest, times or {}) for where in (A0, A1)]

    assert at(word_bound("earliest", "o")) == [3, 4]
    assert at(word_bound("latest", "o")) == [30, 40]
    assert at(offsets_bound({"a": {"0": -2, "1": -1}}, "o")) == [3, 40]
    assert at(offsets_bound({"a": {"0": 7, "1": 8}}, "o")) == [7, 8]
    assert at(time_bound(5, "o"), {A0: 11, A1: 12}) == [11, 12]


def test_times_are_looked_up_once_each():
    """Partitions of one time together."""
    assert time_bound(5, "o").times([A0, A1]) == {5: [A0, A1]}
    assert times_bound({"a": {"0": 1, "1": 2}}, "o").times([A0, A1]) == {1: [A0], 2: [A1]}
    assert word_bound("latest", "o").times([A0]) == {}


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"a": {"0": 1}}, "startingOffsets does not name partition a-1"),
        ({"a": {"0": 1, "1": 1, "2": 1}}, "startingOffsets names a-2, which is not read or not there"),
        ({"a": {"0": 1, "1": 1}, "c": {"0": 1}}, "startingOffsets names c-0"),
    ],
)
def test_a_map_names_all_that_is_read_and_nothing_else(named, says):
    """A partition left out would be read from somewhere by chance."""
    with pytest.raises(ConfigError, match=says):
        offsets_bound(named, "startingOffsets").check_covers([A0, A1])


# --- a stream's offsets ---


def test_a_checkpoint_is_plain_json_and_comes_back():
    """By topic and partition, with the topics' ids; the first with its start."""
    offsets = StreamOffsets({A0: 5, A1: 6, B0: 7}, {"a": "0a", "b": "0b"})
    written = offsets.to_json()
    assert written == {"a": {"0": 5, "1": 6}, "b": {"0": 7}, "@ids": {"a": "0a", "b": "0b"}}
    assert parse_offsets(written) == offsets
    first = StreamOffsets({A0: 5}, {"a": "0a"}, {A0: 2})
    assert parse_offsets(first.to_json()) == first


def test_the_initial_offset_is_a_constant():
    """It may be requested again after a first micro-batch that failed; its end names the start."""
    assert initial_offset() == initial_offset()
    assert parse_offsets(initial_offset()) is None
    first = StreamOffsets({A0: 5, A1: 9}, {"a": "0a"}, {A0: 2, A1: 9})
    assert ranges_between(None, first) == [OffsetRange(A0, 2, 5), OffsetRange(A1, 9, 9)]


def test_what_is_new_is_read_from_its_first_record():
    """A partition, or a topic that was created anew under the name: its old offsets mean nothing."""
    before = StreamOffsets({A0: 5, B0: 50}, {"a": "0a", "b": "0b"})
    after = StreamOffsets({A0: 6, A1: 3, B0: 2}, {"a": "0a", "b": "ff"})
    assert ranges_between(before, after) == [OffsetRange(A0, 5, 6), OffsetRange(A1, 0, 3), OffsetRange(B0, 0, 2)]
    assert known_starts(before, after.topic_ids) == {A0: 5}


@pytest.mark.parametrize("written", [{"a": 5}, {"a": {"x": 1}}, {"@ids": 3}, {"a": {"0": None}}])
def test_anothers_checkpoint_is_refused(written):
    """With what to do."""
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        parse_offsets(written)
