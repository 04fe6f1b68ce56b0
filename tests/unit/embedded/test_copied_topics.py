"""Copies of a cluster's topic in a directory, where the cluster has changed since the last one."""

from __future__ import annotations

import numpy as np
import pytest
from headrace.client.opened.fetched import _copy
from headrace.embedded.opened import OpenDirectory
from headrace.wire.batch import STAMP_BYTES, read_header, stamp
from headrace.wire.encoding import ArrowBuffers, CompactedRange, column_parts, encode_batch
from headrace.wire.errors import DivergedLogError, TimedOutError

TOPIC_ID = bytes(range(16))


def stored(parts, base_offset, previous_crc):
    """Return a batch as a leader of epoch 3 has it."""
    head = stamp(
        read_header(parts[0]),
        base_offset=base_offset,
        append_timestamp_ms=5,
        leader_epoch=3,
        previous_crc=previous_crc,
    )
    return b"".join([head, memoryview(parts[0])[STAMP_BYTES:], *parts[1:]])


def values(*found):
    return ArrowBuffers(np.array([0, *np.cumsum([len(each) for each in found])], np.int32), b"".join(found))


@pytest.fixture
def copied(tmp_path):
    """A copy of the first two records."""
    directory = OpenDirectory(str(tmp_path / "copy"), creates=True)
    directory.adopt("t", TOPIC_ID, 1, {}, "cluster-1")
    partition = directory.copied(TOPIC_ID, 0)
    partition.copy(stored([encode_batch([b"a", b"b"], base_timestamp_ms=1)], 0, 0), 10)
    yield partition
    directory.close()


def test_a_batch_that_compaction_has_merged_continues_a_copy_that_ends_within_it(copied):
    """The copy keeps its own records, and gets those behind them."""
    chain = copied.log.end_mark.crc
    second = stored([encode_batch([b"c", b"d"], base_timestamp_ms=1)], 2, chain)
    chain_crc = read_header(second).chain_crc
    merged = column_parts(
        values(b"b", b"d"), base_timestamp_ms=1, compacted=CompactedRange(0, 4, chain_crc, np.array([1, 3]))
    )
    assert copied.copy(stored(merged, 0, 0), 10)
    assert copied.log_end_offset == 4
    copied.log.reader.verify()
    assert (copied.log.end_mark.crc, int(copied.log.last_epoch)) == (chain_crc, 3)
    third = stored([encode_batch([b"e"], base_timestamp_ms=1)], 4, chain_crc)
    assert copied.copy(third, 4) == 0
    assert copied.copy(third, 10) == len(third)
    assert copied.log_end_offset == 5


def test_a_batch_of_another_log_around_the_end_of_a_copy_is_refused(copied):
    """No compaction has made it: the cluster has lost records and has others now."""
    with pytest.raises(DivergedLogError):
        copied.copy(stored([encode_batch([b"x", b"y", b"z"], base_timestamp_ms=1)], 0, 0), 10)
    assert copied.log_end_offset == 2


def test_a_copy_waits_for_records_that_an_election_has_hidden(copied):
    """The high watermark of a new leader is behind until its followers have fetched."""
    rest = stored([encode_batch([b"c"], base_timestamp_ms=1)], 2, copied.log.end_mark.crc)
    answers = [b"", b"", rest]
    done = _copy(copied, 0, 3, lambda offset: answers.pop(0), lambda state: None, timeout=60)
    assert (done.end_offset, copied.log_end_offset, answers) == (3, 3, [])


def test_a_copy_that_ends_before_what_was_visible_is_an_error(copied):
    with pytest.raises(TimedOutError, match="up to offset 2 only, and had them up to 3"):
        _copy(copied, 0, 3, lambda offset: b"", lambda state: None, timeout=0)


def test_a_copy_does_not_wait_for_what_the_cluster_has_deleted(copied):
    """All of it: there is nothing to fetch."""
    done = _copy(copied, 5, 5, lambda offset: b"", lambda state: None, timeout=0)
    assert (done.records, copied.log_end_offset) == (0, 2)


@pytest.mark.parametrize("settings", [{"retention_ms": "1"}, {"retention_bytes": "1"}, {"cleanup_policy": "compact"}])
def test_a_copy_keeps_what_its_settings_remove_from_the_cluster(tmp_path, settings):
    """They are the cluster's, whose records may be gone by now."""
    directory = OpenDirectory(str(tmp_path / "copy"), creates=True)
    directory.adopt("t", TOPIC_ID, 1, settings, "cluster-1")
    partition = directory.copied(TOPIC_ID, 0)
    chain = 0
    for number in range(3):
        batch = encode_batch([b"%d" % number], [b"k"], base_timestamp_ms=1)
        assert partition.copy(stored([batch], number, chain), 100)
        chain = partition.log.end_mark.crc
        partition.log._writer.roll()
    partition.flush()
    size_bytes = partition.log.size_bytes
    directory._care(partition, retains=True, compacts=True)
    assert (partition.log_start_offset, partition.log.size_bytes) == (0, size_bytes)
    directory.close()
