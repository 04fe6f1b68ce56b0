"""Followers of compacted logs: what each of them may continue, and what it copies again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace.log import compacted_writer
from headrace.log.record_selection import Kept
from headrace.wire.batch import read_header
from headrace.wire.encoding import encode_batch
from headrace.wire.ids import Offset
from headrace.wire.table_keys import expiry_headers, table_key
from headrace_broker.core.messages import Appended
from headrace_broker.core.replica_fetch import AppendBatches, ResetLog, TruncateTo

from tests.unit.broker.compacted_replicas import DELETE_RETENTION_MS, START_MS, CompactedNode, CompactedReplicas, Row


def put(node: CompactedNode, *pairs: tuple[bytes, bytes | None], expires_ms: int = 0) -> None:
    """Append one batch at the leader."""
    at_ms = START_MS + node.partition.at_ms
    headers = [expiry_headers(expires_ms)] * len(pairs) if expires_ms else None
    batch = encode_batch(
        [value for _, value in pairs], [key for key, _ in pairs], base_timestamp_ms=at_ms, headers=headers
    )
    base = node.log.append(
        [(batch, read_header(batch))], leader_epoch=node.replica.leader_epoch, append_timestamp_ms=at_ms
    )
    node.handle(Appended(base, Offset(base + len(pairs)), at_ms=at_ms))


def compact(node: CompactedNode, kept: Kept | None = None) -> None:
    """Compact all that is committed."""
    if node.log._segments.active.size_bytes:
        node.log._writer.roll()
    node.flush()
    now_ms = START_MS + node.partition.at_ms
    node.log.compaction.compact(now_ms, node.replica.high_watermark, kept or Kept())


@pytest.fixture
def replicas() -> CompactedReplicas:
    """The first leads; all have the first two batches; the third is away from then on, and is no member any more."""
    replicas = CompactedReplicas()
    replicas.start()
    put(replicas[1], (b"a", b"1"), (b"b", b"1"))
    put(replicas[1], (b"a", b"2"))
    replicas[1].flush()
    for follower in (2, 3):
        replicas.catch_up(follower, 1)
    replicas.unregister(3)
    assert replicas.sweep()
    replicas.see_all()
    return replicas


def commit(replicas: CompactedReplicas) -> None:
    """Let the second one copy what the first has."""
    replicas[1].flush()
    replicas.catch_up(2, 1)


def back(replicas: CompactedReplicas) -> list[object]:
    """Let the third one come back and copy; return the steps that were no appends."""
    if 3 not in replicas.live:
        replicas.register(3)
        replicas.see_all()
    replicas[3].replica.fetches.end()
    steps = []
    for _ in range(20):
        step = replicas.fetch(3, 1)
        replicas[3].flush()
        if not isinstance(step, AppendBatches):
            steps.append(step)
        elif replicas[3].log.log_end_offset == replicas[1].log.log_end_offset:
            return steps
    raise AssertionError(f"it never has all: {steps}")


def test_a_follower_continues_where_a_compacted_batch_ends(replicas: CompactedReplicas) -> None:
    """Batches that were compacted below its log's end do not concern it."""
    compact(replicas[1])
    put(replicas[1], (b"c", b"1"))
    commit(replicas)
    assert back(replicas) == []
    assert [row.offset for row in replicas[3].rows()] == [0, 1, 2, 3]


def test_a_follower_goes_back_to_the_start_of_a_compacted_batch(replicas: CompactedReplicas) -> None:
    """Its log ends where the leader's has no batch any more that does: it copies that range again."""
    put(replicas[1], (b"c", b"1"))
    commit(replicas)
    compact(replicas[1])
    assert back(replicas) == [TruncateTo(0)]
    assert replicas[3].rows() == replicas[1].rows()
    replicas.check()


def test_a_follower_that_has_missed_a_deletion_begins_again(replicas: CompactedReplicas) -> None:
    """The deletion is gone from the leader's log: the follower would keep what it deletes for ever."""
    put(replicas[1], (b"b", None))
    commit(replicas)
    replicas.at_ms += DELETE_RETENTION_MS
    compact(replicas[1])
    put(replicas[1], (b"d", b"1"))
    commit(replicas)
    assert replicas[1].log.deletions_end == 4
    assert back(replicas) == [ResetLog(0, 0)]
    assert b"b" not in {row.key for row in replicas[3].rows()}
    assert replicas[3].log.deletions_end == 4
    replicas.check()


def test_a_follower_that_has_missed_what_expired_begins_again(replicas: CompactedReplicas) -> None:
    """It has the older value, which would be read again there once the newer one has expired."""
    key = table_key(b"row", b"column")
    for node in replicas.nodes.values():
        node.log.update_settings(replace(node.log._state.settings, expires_records=True))
    put(replicas[1], (key, b"for ever"))
    commit(replicas)
    assert back(replicas) == []
    replicas.unregister(3)
    replicas.see_all()
    put(replicas[1], (key, b"for a while"), expires_ms=START_MS + replicas.at_ms + 1)
    commit(replicas)
    replicas.at_ms += DELETE_RETENTION_MS + 1
    compact(replicas[1])
    put(replicas[1], (b"d", b"1"))
    commit(replicas)
    assert key not in {row.key for row in replicas[1].rows()}
    assert back(replicas) == [ResetLog(0, 0)]
    assert key not in {row.key for row in replicas[3].rows()}


def test_a_copy_that_was_begun_goes_on(replicas: CompactedReplicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun after the deletion was removed, so that it cannot have what was deleted."""
    monkeypatch.setattr(compacted_writer, "BATCH_BYTES", 100)
    for number in range(8):
        put(replicas[1], (b"k%d" % number, b"v" * 100))
    put(replicas[1], (b"b", None))
    commit(replicas)
    replicas.at_ms += DELETE_RETENTION_MS
    compact(replicas[1])
    put(replicas[1], (b"d", b"1"))
    commit(replicas)
    replicas.register(3)
    replicas.see_all()
    assert replicas.fetch(3, 1) == ResetLog(0, 0)
    replicas.fetch(3, 1, max_bytes=1)
    assert 0 < replicas[3].log.log_end_offset < replicas[1].log.deletions_end
    assert back(replicas) == []
    replicas.check()


def test_a_follower_that_leads_knows_of_deletions_that_it_never_had(replicas: CompactedReplicas) -> None:
    """It has copied from a leader that had removed them: a log that ends before them must begin again at it, too."""
    put(replicas[1], (b"b", None))
    commit(replicas)
    replicas.at_ms += DELETE_RETENTION_MS
    compact(replicas[1])
    put(replicas[1], (b"d", b"1"))
    commit(replicas)
    assert replicas[2].log.deletions_end == replicas[1].log.deletions_end == 4


def test_a_truncated_log_forgets_what_it_had_of_deletions(replicas: CompactedReplicas) -> None:
    """What is copied again behind the cut may have other deletions."""
    log = replicas[3].log
    log.compaction.raise_deletions_end(3)
    log.truncate_to(2)
    assert log.deletions_end == 2
    log.reset_to(0)
    assert log.deletions_end == 0


def test_a_follower_within_the_first_batch_begins_again(replicas: CompactedReplicas) -> None:
    """Records were deleted up to the middle of a compacted batch, in which the follower ends."""
    put(replicas[1], (b"c", b"1"))
    put(replicas[1], (b"a", b"3"))
    commit(replicas)
    compact(replicas[1])
    replicas[1].delete_records(4)
    assert back(replicas)[0] == ResetLog(0, 0)
    replicas.check()


def test_what_is_not_committed_is_not_compacted() -> None:
    """A record that may be taken back must not replace one that may not."""
    replicas = CompactedReplicas()
    replicas.start()
    put(replicas[1], (b"a", b"1"))
    commit(replicas)
    replicas.catch_up(3, 1)
    put(replicas[1], (b"a", b"2"))
    compact(replicas[1])
    assert replicas[1].rows()[0] == Row(0, 1, b"a", b"1")
