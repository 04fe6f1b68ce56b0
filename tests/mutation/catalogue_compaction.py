"""Rules of compaction: which records go, what replaces a file, and what a follower must not miss."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Scenario, Simulation, Test, drop, never, replace

LOGS = "tests/unit/log/test_log_compaction.py::"
FOLLOWERS = "tests/unit/broker/test_broker_compacted_replicas.py::"
DELETIONS_GO = {
    "compacts": True, "forgets_deletions": True, "mirrors": False, "is_table": False, "typed": False,
    "producers": (-1, -1), "faults": ("kill", "power", "stop", "isolate", "move leader", "move"),
}  # fmt: skip
"""A compacted topic whose followers are away and come back."""
TOO_RARE = "The simulator seldom loses power in the one call that matters."

COMPACTION = (
    Mutant(
        "keys-found-by-hash",
        "H150",
        "_Layer.holds",
        replace("keys.take(rows).equal(self.keys.take(places[rows]))", "np.ones(len(rows), np.bool_)"),
        "Two keys with the same hash count as one, and a record goes that nothing replaces.",
        Test("tests/unit/log/test_newer_keys.py::test_another_key_with_the_same_hash", "Hashes are 64 bits long."),
    ),
    Mutant(
        "older-record-of-a-key-stays",
        "H150",
        "_select_newest",
        replace("reversed(part.chunks)", "part.chunks"),
        "A record of a later chunk goes in favour of an older one of its key.",
        Test(LOGS + "test_any_history", "Segments there are smaller than a chunk."),
    ),
    Mutant(
        "keys-beyond-memory-not-compared",
        "H150",
        "_select_newest",
        replace("next_hash = newer.next_hash", "next_hash = None"),
        "Of keys that do not fit into memory old records stay below the offset that says that none do.",
        Test(LOGS + "test_more_keys_than_memory", "The simulator has few keys."),
    ),
    Mutant(
        "uncommitted-records-compacted",
        "H150",
        "LogCompaction._parts",
        replace("min(high_watermark, state.flushed.offset)", "state.flushed.offset"),
        "A record that may be taken back replaces a committed one.",
        Test(FOLLOWERS + "test_what_is_not_committed_is_not_compacted", "Closed segments there are soon committed."),
    ),
    Mutant(
        "compacted-file-not-synced",
        "H152",
        "SegmentReplacement._write",
        drop("files.filesystem.fsync(file.descriptor)"),
        "A compacted segment replaces others before it is on the disk.",
        Test(LOGS + "test_crash_at_any_point", TOO_RARE),
    ),
    Mutant(
        "compacted-name-not-synced",
        "H152 H36",
        "SegmentReplacement._install",
        drop("segments.filesystem.fsync_directory(state.directory)"),
        "Segments are removed while the name of what replaces them may be lost.",
        Test(LOGS + "test_crash_at_any_point", TOO_RARE),
    ),
    Mutant(
        "recovery-point-in-a-replaced-segment",
        "H152 H31",
        "LogCompaction._compact",
        drop("self._durability.write_checkpoint(both=True)"),
        "After a crash the recovery point names a segment that is gone.",
        Test(LOGS + "test_crash_at_any_point", TOO_RARE),
    ),
    Mutant(
        "replaced-segments-read-again",
        "H152",
        "recover",
        replace("replaced_segments(present)", "[]"),
        "After a crash a log has segments and what replaces them.",
        Test(LOGS + "test_crash_at_any_point", TOO_RARE),
    ),
    Mutant(
        "chain-ends-in-a-compacted-batch",
        "I30 I7",
        "CompactedWriter._end_batch",
        replace("pending.last.chain_crc", "0"),
        "What follows a compacted batch does not continue it.",
        Test(LOGS + "test_newest_record_of_each_key_stays", "The simulator compares it, too."),
    ),
    Mutant(
        "epochs-in-one-compacted-batch",
        "I30 I6",
        "CompactedWriter._fits",
        replace("header.leader_epoch == pending.last.leader_epoch", "True"),
        "Records count for another leader's epoch.",
        Test(LOGS + "test_follower_copies_a_compacted_log", "The simulator compares it, too."),
    ),
    Mutant(
        "batches-of-retries-compacted",
        "H48",
        "_select_undeleted",
        never("header.base_offset in kept.batches and at_ms > now_ms - kept.batches_ms"),
        "After a restart a retry of an acknowledged batch is taken for a new one.",
        Test(LOGS + "test_batches_that_may_be_sent_again_stay", "Snapshots of producers hide it."),
    ),
    Mutant(
        "deletions-removed-behind-kept-batches",
        "H150",
        "select_records",
        replace("kept._replace(deletions_from=part.whole_start)", "kept"),
        "A deletion goes, and what it deletes is in an earlier batch that stays.",
        Simulation(20, changes=DELETIONS_GO),
    ),
    Mutant(
        "young-deletions-removed",
        "H150",
        "_select_undeleted",
        replace("at_ms > oldest_ms", "at_ms > now_ms"),
        "A deletion goes before readers have seen it.",
        Simulation(20, changes=DELETIONS_GO | {"forgets_deletions": False}),
    ),
    Mutant(
        "missed-deletion-not-noticed",
        "H151",
        "compare_logs",
        never("_may_miss(log.log_start_offset, offset, request.deletions_end, log.deletions_end)"),
        "A follower that was away keeps records that were deleted, for ever.",
        Simulation(20, changes=DELETIONS_GO),
    ),
    Mutant(
        "deletion-missed-between-two-answers",
        "H151",
        "next_step",
        never("_may_miss(start_offset, log.log_end_offset, log.deletions_end, answer.deletions_end)"),
        "A follower copies a row before a purge and what follows after it, and keeps what was purged.",
        Test(
            "tests/unit/broker/test_broker_fetch_ahead.py::test_deletions_that_went_meanwhile_are_asked_about_first",
            "A purge between two answers is seldom.",
        ),
    ),
    Mutant(
        "removed-deletions-not-stored",
        "H151",
        "LogCompaction._compact",
        drop("self._raise(truncations, deletions=max(part.deletions_end for part in parts))"),
        "A leader removes deletions and does not know.",
        Simulation(20, changes=DELETIONS_GO),
    ),
    Mutant(
        "open-segments-keep-deletions",
        "H163",
        "LogSettings.roll_ms",
        never("self.compacts"),
        "What a partition without further records has deleted stays for a week.",
        Scenario("test_deletion.py::test_a_deleted_key_is_in_no_file_an_hour_later"),
    ),
    Mutant(
        "deletions-wait-for-records",
        "H163",
        "LogCompaction._is_due",
        never("any(self._closed.has_deletions_before(part.segment, oldest_ms) for part in parts)"),
        "A deletion that is young at a compaction stays until as many records come.",
        Scenario("test_deletion.py::test_a_deleted_key_is_in_no_file_an_hour_later"),
    ),
    Mutant(
        "end-within-a-compacted-batch",
        "I30 H3",
        "compare_logs",
        never("before.is_compacted and before.end_offset > offset"),
        "A follower whose end is in a compacted batch is told that its log differs, and stops.",
        Test(
            FOLLOWERS + "test_a_follower_goes_back_to_the_start_of_a_compacted_batch",
            "The simulator ends with the replica offline, too, if a follower is away for long enough.",
        ),
    ),
    Mutant(
        "truncated-in-a-compacted-file",
        "I6",
        "LogTruncation._cut_to",
        never("segment.is_compacted"),
        "A file is appended to whose name says where it ends.",
        Test(
            LOGS + "test_truncation_of_a_compacted_segment",
            "Truncations into what is committed need unclean elections.",
        ),
    ),
    Mutant(
        "records-without-key-in-a-compacted-topic",
        "I30",
        "_check_batch",
        never("config.compacts and header.flags & _KEYS_AND_NULLS != BatchFlags.KEYS"),
        "A record without a key stays for ever in a compacted topic.",
        Test("tests/unit/broker/test_broker_compacted_topic.py::test_records_need_keys", "Its records have keys."),
    ),
    Mutant(
        "compacted-batch-taken-from-a-client",
        "I6",
        "_check_batch",
        never("header.flags & _UNAPPENDABLE"),
        "A client's batch covers offsets that it does not have.",
        Test(
            "tests/unit/broker/test_broker_compacted_topic.py::test_compacted_batches_are_not_taken",
            "Clients send none.",
        ),
    ),
    Mutant(
        "newer-records-not-named",
        "H158",
        "CompactedWriter.add",
        drop("pending.removed = pending.removed.joined(removed)"),
        "A state before a compaction looks complete, and is not.",
        Test(LOGS + "test_any_history", "Only reads as of an offset, and followers that restart, depend on it."),
    ),
    Mutant(
        "state-behind-its-source-answers",
        "H158 I31",
        "PartitionTable.read_state",
        never("is_copied and self._state.newer_end > high_watermark"),
        "A follower that restarted while it copied a compacted log answers without rows that were there all the time.",
        Test(
            "tests/unit/broker/test_broker_table.py::test_a_copy_that_is_behind_its_source_answers_nothing",
            "It must restart within the milliseconds before its leader answers.",
        ),
    ),
)
