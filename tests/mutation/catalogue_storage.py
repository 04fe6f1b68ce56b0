"""Rules of the log on disk: durability, corruption, what a crash leaves, and what a machine refuses."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Scenario, Simulation, Test, always, drop, never, replace

STORAGE = (
    Mutant(
        "flush-without-fsync",
        "I16 H22",
        "LogDurability.sync_file",
        drop("self._segments.filesystem.fsync(file.descriptor)"),
        "A flush moves the durable mark and syncs nothing.",
        Simulation(60, durability="fsync"),
    ),
    Mutant(
        "corrupt-batch-accepted",
        "I17",
        "check_next",
        never("crc32c(view[CRC_START:]) != header.crc"),
        "A follower takes a batch whose bytes were corrupt, and recovery takes a torn one.",
        Scenario("test_corruption.py::test_a_follower_refuses_what_its_leaders_disk_corrupt"),
    ),
    Mutant(
        "log-start-not-persisted-first",
        "I18",
        "LogRetention._raise_to",
        drop("durability.write_checkpoint(...)"),
        "Segments go before the log start that lies behind them is durable.",
        Scenario("test_log_start.py::test_the_log_start_outlives_a_power_loss"),
    ),
    Mutant(
        "retention-beyond-the-high-watermark",
        "I18",
        "expired",
        never("age.end_offset > high_watermark"),
        "Retention takes records that are not committed yet.",
        Test(
            "tests/unit/log/test_partition_log.py::test_retention_by_time_takes_whole_old_segments_below_the_high_watermark",
            "Forty seeds with a retention of half a second did not: what is old enough is committed by then.",
        ),
    ),
    Mutant(
        "epoch-not-persisted",
        "H2",
        "PartitionLog._start_epoch",
        replace(
            "self.durability.epochs_due |= self._epochs.assign(leader_epoch, self._state.end.offset)",
            "self._epochs.assign(leader_epoch, self._state.end.offset)",
        ),
        "A leader serves before the start of its epoch is durable.",
        Test(
            "tests/unit/log/test_log_epochs.py::test_the_start_of_an_epoch_is_durable_when_it_is_said_to_be",
            "An epoch without a record decides nothing but where the next one begins.",
        ),
    ),
    Mutant(
        "tail-truncated-though-a-batch-follows",
        "H31",
        "_Scan._judge",
        never("found or not self._proven"),
        "Whatever is bad behind the mark is cut, sound batches behind it included.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_corruption_past_the_mark_with_a_valid_batch_behind_is_not_a_torn_tail",
            "The simulator corrupts only what the mark vouches for: what lies behind it may be torn as well.",
        ),
    ),
    Mutant(
        "truncation-not-synced",
        "H32",
        "LogTruncation.remove_rest",
        drop("self._durability.sync_file(file)"),
        "Old blocks come back behind new ones after a power loss.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_crash_between_truncation_steps_leaves_a_whole_log",
            "The chain finds what comes back.",
        ),
    ),
    Mutant(
        "chain-not-checked",
        "H32 I6",
        "check_next",
        never("header.previous_crc != before.crc"),
        "A batch of another log is taken for the next one where offset and epoch fit.",
        Test(
            "tests/unit/log/test_partition_log.py::test_replica_refuses_what_does_not_fit",
            "Truncations are synced, so that no old block is ever behind a new one.",
        ),
    ),
    Mutant(
        "io-error-forgotten",
        "H34",
        "LogState.go_offline",
        drop("self.offline_error = failure"),
        "After a failed fsync the log stays online, and the next fsync succeeds.",
        Test(
            "tests/unit/log/test_log_faults.py::test_io_error_takes_the_log_offline_for_ever",
            "The broker has taken the replica out of service by then, and exits.",
        ),
    ),
    Mutant(
        "refused-fsync-made-good-by-a-second",
        "H34",
        "LogDurability.sync_file",
        drop("self._in_doubt = True"),
        "After a refused fsync the next one succeeds without having written the pages in doubt.",
        Test(
            "tests/unit/log/test_log_refusals.py::test_a_refused_fsync_is_not_made_good_by_a_second_one",
            "The simulator's disks drop no pages with an fsync that they refuse.",
        ),
    ),
    Mutant(
        "refused-truncation-not-reported",
        "H35",
        "PartitionFollower._cut",
        never("end_offset < self._replica.log_end_offset"),
        "A truncation that is refused halfway has lowered the log's end, and the core keeps the old one.",
        Scenario("test_refused_cut.py::test_a_follower_whose_cut_was_refused_halfway_copies_on_where_its_log_ends"),
    ),
    Mutant(
        "part-of-a-batch-stays",
        "H35",
        "LogWriter._refuse",
        replace("self._remove_rest()", "state.uncut = False"),
        "A batch that the disk had no room for stays in part, with the next one behind it.",
        Test(
            "tests/unit/log/test_log_faults.py::test_full_disk_mid_append_leaves_no_trace",
            "The next append goes over it; only a crash before that shows it, as a torn tail.",
        ),
    ),
    Mutant(
        "new-segment-without-its-name",
        "H36",
        "LogDurability.flush_dirty",
        never("directory_dirty"),
        "A flush reports a new segment as durable while its directory entry is not.",
        Simulation(60, changes={"faults": ("power", "power all", "kill"), "durable": True}),
    ),
    Mutant(
        "checkpoint-checksum-ignored",
        "H37",
        "_unpack",
        never('crc32c(slot[:-4]) != int.from_bytes(slot[-4:], "little")'),
        "A corrupt slot decides where the log starts and what of it is durable.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_both_checkpoint_slots_bad_scans_all_and_refuses_only_a_bad_tail",
            "The simulator corrupts logs, and its writes of one slot are never torn.",
        ),
    ),
    Mutant(
        "corrupt-index-believed",
        "H38",
        "IndexFile.load",
        never("crc32c(data) != crc"),
        "A corrupt index leads reads astray.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_flip_anywhere_in_an_index_file_misleads_nobody",
            "The simulator corrupts logs only.",
        ),
    ),
    Mutant(
        "clean-marker-stays",
        "H39",
        "_take_clean_marker",
        never("filesystem.exists(marker_path)"),
        "A crash after a clean stop and a start is taken for a clean stop.",
        Test(
            "tests/unit/log/test_log_clean_marker.py::test_a_clean_stop_is_known_to_the_next_start_only",
            "The marker names the session that it ended, and a later one is not taken for it: no record is lost by it.",
        ),
    ),
    Mutant(
        "marker-though-a-log-failed",
        "H40",
        "DataDirectory.close",
        drop("clean = clean and not log.offline"),
        "A stop counts as clean though a log could not be flushed.",
        Test(
            "tests/unit/log/test_log_clean_marker.py::test_no_stop_is_clean_where_a_log_has_failed",
            "The simulator's brokers, like the shipped one, write no marker then.",
        ),
    ),
    Mutant(
        "written-in-its-place",
        "H41",
        "replace_file",
        replace('f"{directory}/{name}.tmp"', 'f"{directory}/{name}"'),
        "A small file is written where the old one stood: power that is lost on the way leaves neither.",
        Test(
            "tests/unit/log/test_log_replace_file.py::test_power_that_is_lost_on_the_way_leaves_one_of_the_two",
            "It takes power lost within a few writes of a small file.",
        ),
    ),
    Mutant(
        "record-stamped-by-a-clock-in-doubt",
        "H43",
        "PartitionContext.now_ms",
        always("self.stamp_clock is None"),
        "A leader whose clock is wrong stamps its time, by which its records are deleted once the clock is right.",
        Simulation(100, changes={"faults": ("clock jump",), "retention_ms": 2000, "fault_period_ms": 1500}),
    ),
    Mutant(
        "retention-at-a-jumped-clock",
        "H43",
        "_believed_ms",
        replace("None if context.clock_doubt() else context.now_ms()", "context.clock.now_ms()"),
        "A clock that jumps ahead lets retention take everything.",
        Simulation(40, changes={"faults": ("clock jump",), "retention_ms": 2000, "fault_period_ms": 1500}),
    ),
    Mutant(
        "time-index-of-the-last-batch",
        "H44",
        "SegmentIndex.note",
        replace(
            (
                "self.max_append_ms = max(self.max_append_ms, append_ms)\n"
                "self.max_record_ms = max(self.max_record_ms, record_ms)"
            ),
            "self.max_append_ms = append_ms\nself.max_record_ms = record_ms",
        ),
        "A time that is only in a batch before later ones of earlier times is not found.",
        Test(
            "tests/unit/log/test_partition_log.py::test_a_time_that_later_batches_are_before_is_found",
            "No client of the simulator looks up an offset by its time.",
        ),
    ),
    Mutant(
        "reads-wait-on-the-loop",
        "H46",
        "Slice.try_read_nowait",
        replace("self._files.filesystem.pread_nowait", "self._files.filesystem.pread"),
        "A read that the page cache lacks holds the event loop until the disk answers.",
        Test(
            "tests/unit/log/test_partition_log.py::test_read_nowait_gives_up_where_the_disk_must_be_waited_for",
            "Calls to the simulator's disk take no time on the loop.",
        ),
    ),
    Mutant(
        "closed-log-works",
        "H47",
        "LogState.check_online",
        never("self.closed"),
        "A late call writes into the files of a log that was opened anew at the same place.",
        Test(
            "tests/unit/log/test_log_faults.py::test_closed_log_refuses_everything",
            "The simulator's calls are done before anything else happens.",
        ),
    ),
    Mutant(
        "truncation-keeps-snapshots",
        "H48",
        "LogTruncation._cut_to",
        drop("self._snapshots.drop_above(cut.offset)"),
        "After a truncation a snapshot of the producers has sequences of records that are gone.",
        Scenario("test_retries.py::test_a_record_that_was_cut_is_no_duplicate"),
    ),
    Mutant(
        "look-up-behind-a-time",
        "H162",
        "LogReader._find_time",
        replace("batch_timestamp(header, kind) < timestamp_ms", "batch_timestamp(header, kind) <= timestamp_ms"),
        "A reader that begins at the time of a record skips its batch.",
        Simulation(60),
    ),
)
