"""Rules of tables: what a read of a row sees, and what a condition is decided by."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Simulation, Test, drop, never, replace

UNIT = "tests/unit/broker/test_broker_table.py::"
DIRECTORY = "tests/unit/embedded/test_directory_tables.py::"
NO_DIRECTORY = "It simulates clusters."
PURGED = "It searches no files."
TABLE = {"compacts": True, "is_table": True, "retention_ms": -1, "producers": (), "produce_period_ms": 20}

TABLES = (
    Mutant(
        "condition-without-uncommitted-records",
        "H153 I31",
        "RowOffsets.current",
        replace("change.offset < self.end_offset", "True"),
        "A condition is decided by what is committed: two writers get the same version.",
        Simulation(20, changes=TABLE),
    ),
    Mutant(
        "deletion-of-a-column-without-a-version",
        "I31",
        "RowOffsets.apply",
        replace("self._remove(key, RequestOutcome.MISS_DELETED)", "self._remove(key, RequestOutcome.MISS_DELETED) < 0"),
        "A write is applied for a version that a row had before one of its columns was deleted.",
        Test(
            "tests/unit/broker/test_table_state.py::test_a_version_is_the_offset_of_a_row_s_last_record",
            "Its clients delete a column only with a later write of another one.",
        ),
    ),
    Mutant(
        "expired-column-without-a-version",
        "I31",
        "RowOffsets.expire",
        replace("self._remove(key, RequestOutcome.MISS_EXPIRED)", "self._remove(key, RequestOutcome.MISS_EXPIRED) < 0"),
        "A write is applied for a version that a row had before one of its columns was deleted, or replaced.",
        Test(
            "tests/unit/broker/test_table_state.py::test_a_deletion_is_not_forgotten_for_a_column_that_ends_later",
            "What was written to expire may be absent at any time there, for clocks differ.",
        ),
    ),
    Mutant(
        "directory-state-made-during-a-compaction",
        "H155",
        "DirectoryTableState._make",
        replace("deletions_end != partition.removed_deletions_end", "deletions_end < 0"),
        "A deleted row is there again: its value was read before a compaction, and its deletion would be after it.",
        Test(DIRECTORY + "test_a_state_that_is_made_while_its_log_is_compacted_misses_no_deletion", NO_DIRECTORY),
    ),
    Mutant(
        "part-of-a-compacted-table-answers",
        "H158",
        "DirectoryTableState.complete_end",
        never("end_offset < newer_end"),
        "A copy that ends early answers without rows that were there all the time.",
        Test(DIRECTORY + "test_a_part_of_a_compacted_table_answers_no_reads", NO_DIRECTORY),
    ),
    Mutant(
        "row-cut-in-the-middle",
        "I31",
        "RowsAnswer._add",
        drop("del rows[-1]"),
        "A client that continues with the next row returns one without some of its columns.",
        Test(
            "tests/unit/partition/test_partition_rules.py::test_a_row_that_does_not_fit_is_left_out_as_a_whole",
            "Its rows are small.",
        ),
    ),
    Mutant(
        "replaced-leader-answers-reads",
        "I31",
        "TableService._end",
        never("read.is_from_leader"),
        "A leader that is cut off from etcd answers rows of before its successor's writes.",
        Test(
            "tests/simulation/test_simulation.py::test_a_leader_that_was_replaced_answers_no_read",
            "Its clients seldom stay with a leader that was replaced: one seed of 7,200.",
        ),
    ),
    Mutant(
        "condition-decided-before-another-append",
        "H153",
        "TableWrites._append.guard",
        never("decided_at not in (None, self._log_end)"),
        "Between the decision and the append in a thread another write comes first.",
        Test(UNIT + "test_slow_appends_keep_conditions", "Its threads are soon done."),
    ),
    Mutant(
        "condition-decided-by-truncated-records",
        "H153",
        "PartitionTable._continue_log",
        drop("self._uncommitted.begin(state.end_offset)"),
        "A leader that was replaced and leads again decides by the records that it had to truncate.",
        Test(UNIT + "test_what_was_truncated_decides_no_write", "Few seeds truncate what it has not committed."),
    ),
    Mutant(
        "refusal-before-commit",
        "H154",
        "TableWrites._await_commit",
        replace("wait is None", "wait is None or not written.applied"),
        "A refusal tells a version that the next leader may not have.",
        Test(UNIT + "test_a_refusal_waits_for_the_commit_of_what_it_tells", "What it tells is seldom taken back."),
    ),
    Mutant(
        "read-without-catching-up",
        "I31",
        "PartitionTable._has",
        replace("self._state.end_offset >= end_offset", "True"),
        "A read is answered by what an earlier one has read of the log.",
        Simulation(10, changes=TABLE),
    ),
    Mutant(
        "row-torn-between-turns",
        "I31",
        "PartitionTable._apply",
        replace("count >= APPLIED_PER_TURN and not change.key.startswith(row)", "count >= APPLIED_PER_TURN"),
        "While a large batch is applied, a read sees some columns of a write.",
        Test(UNIT + "test_a_row_is_never_seen_in_part", "Its batches are small."),
    ),
    Mutant(
        "truncated-table-not-noticed",
        "H155",
        "PartitionTable._is_continued",
        replace("header is not None and header.chain_crc == self._crc", "header is not None"),
        "The state has records that are not in the log any more.",
        Test(UNIT + "test_a_truncated_log_is_read_anew", "A commit that is taken back is what its other checks show."),
    ),
    Mutant(
        "expired-by-a-wrong-clock-for-ever",
        "H43 I31",
        "PartitionTable._has",
        replace("not self._state.lacks_columns(self._context.now_ms())", "True"),
        "A clock that was ahead and is put back leaves a state without columns that the log has.",
        Test(
            UNIT + "test_columns_that_a_wrong_clock_has_expired_are_there_again",
            "What was written to expire may be absent at any time there, for clocks differ.",
        ),
    ),
    Mutant(
        "state-with-records-below-the-log-start",
        "H155",
        "PartitionTable._build",
        replace("RowOffsets(batches(), start_offset, now_ms)", "RowOffsets(batches(), 0, now_ms)"),
        "A new state has rows whose records cannot be read: each read of them fails.",
        Test(
            UNIT + "test_a_new_state_has_nothing_below_the_log_start", "No one removes records of a table by their age."
        ),
    ),
    Mutant(
        "expired-records-not-told-to-followers",
        "H151",
        "_select_undeleted",
        replace("not rows.all()", "columns is not None and not _undeleted(columns, header).all()"),
        "A follower that was away has the older value of what has expired, for ever.",
        Test(
            "tests/unit/broker/test_broker_compacted_replicas.py::"
            "test_a_follower_that_has_missed_what_expired_begins_again",
            "A replica there is seldom away while what it has is replaced, expires, and is compacted.",
        ),
    ),
    Mutant(
        "expired-records-removed-at-once",
        "H150 I31",
        "_select_undeleted",
        replace("not is_kept and settings.expires_records", "settings.expires_records"),
        "What an expired record replaces stays in a batch that is kept, and is read again.",
        Test(
            "tests/unit/log/test_log_compaction.py::test_what_a_kept_batch_has_does_not_come_back",
            "Batches of its clients are seldom sent again after a compaction.",
        ),
    ),
    Mutant(
        "compaction-ahead-of-the-state",
        "H155",
        "compact_partition",
        replace("min(high_watermark, table.state.end_offset)", "high_watermark"),
        "A deletion goes before the table's state has read it, which keeps a key without a record.",
        Test(UNIT + "test_only_what_the_state_has_is_compacted", "Its states are kept up all the time."),
    ),
    Mutant(
        "state-made-during-a-compaction",
        "H155",
        "PartitionTable._lacks_deletions",
        replace("self._partition.open_log.compaction.removed_deletions_end > self._state.end_offset", "False"),
        "A state keeps a row whose deletion went while it was made.",
        Test(UNIT + "test_a_state_made_during_a_compaction_has_no_deleted_row", "Its topics do not become tables."),
    ),
    Mutant(
        "existing-row-purged",
        "H156",
        "check_deleted",
        never("any(offset < wanted.before_offset for _, offset in rows.columns_of(key))"),
        "A row goes that is not deleted.",
        Test("tests/unit/broker/test_broker_table_purge.py::test_a_row_that_exists_is_not_purged", PURGED),
    ),
    Mutant(
        "purged-row-in-a-batch-of-a-retry",
        "H156",
        "_select_undeleted",
        replace("is_whole and (gone is None or not gone.any())", "is_whole"),
        "A batch that its producer may send again stays as it is, with a purged row.",
        Test("tests/unit/log/test_log_purge.py::test_batches_of_retries_are_no_reason", PURGED),
    ),
    Mutant(
        "purge-removes-young-records-of-others",
        "H156",
        "_select_newest",
        replace("not part.is_young", "not deletes"),
        "A younger record of a key replaces the one that a look back to its time finds.",
        Test("tests/unit/log/test_log_purge.py::test_the_history_of_other_rows_stays", PURGED),
    ),
    Mutant(
        "purged-file-comes-back",
        "H156",
        "LogRetention.purge_deleted_files",
        drop("self._segments.filesystem.fsync_directory(state.directory)"),
        "After a loss of power the file that was unlinked has its name again.",
        Test("tests/unit/log/test_log_purge.py::test_no_file_has_what_was_purged", PURGED),
    ),
    Mutant(
        "later-write-purged",
        "H156",
        "PurgedRecords.removed",
        replace("self.before_offset", "1 << 60"),
        "A row that was written again goes with what it was before.",
        Test("tests/unit/log/test_log_purge.py::test_what_was_written_later_stays", PURGED),
    ),
    Mutant(
        "write-sent-again-decided-again",
        "H48",
        "TableWrites._try",
        never("repeated is not None"),
        "The second copy of a write under a condition is refused because of the first.",
        Test(
            UNIT + "test_a_write_sent_again_has_the_first_result",
            "The client tells a refusal as one; it is not wrong there.",
        ),
    ),
    Mutant(
        "doubt-of-an-earlier-try-forgotten",
        "H52",
        "Tries.failed",
        never("self.has_effect and error.outcome == Outcome.UNKNOWN"),
        "A write that may have been applied is told as not applied.",
        Test(
            "tests/unit/client/table/test_table_operations.py::"
            "test_a_write_in_doubt_is_told_so_whatever_came_first_or_last",
            "A simulation of 300 seeds met it once.",
        ),
    ),
)
