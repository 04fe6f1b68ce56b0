"""Rules of the log on disk: what is durable, what is corruption, what a crash may leave."""

from __future__ import annotations

from tests.mutation.ledger_faults import CLOCKS
from tests.mutation.mutants import BROKER, COORDINATOR, LOG_PACKAGE, SERVER, Mutant, Scenario, Simulation, Test

LOG = f"{LOG_PACKAGE}/log.py"
LOG_WRITER = f"{LOG_PACKAGE}/log_writer.py"
LOG_TRUNCATION = f"{LOG_PACKAGE}/log_truncation.py"
DURABILITY = f"{LOG_PACKAGE}/durability.py"
RECOVERY = f"{LOG_PACKAGE}/recovery.py"
EPOCHS = f"{LOG_PACKAGE}/epochs.py"
CHECKPOINT = f"{LOG_PACKAGE}/checkpoint.py"
SCAN = f"{LOG_PACKAGE}/scan.py"
REPLACED = "tests/unit/log/test_log_replace_file.py"
SMALL_FILE = "The simulator sees it late: as a partition that has no leader after a minute."
LOSING = {"faults": ["power", "power all", "kill"], "durable": True}
"""Faults that take what was not fsynced."""

STORAGE_RULES = (
    Mutant(
        "refused-cut-not-told",
        "H35",
        f"{BROKER}/runtime/partition_follower.py",
        "            elif end_offset < self._replica.log_end_offset:\n",
        "            elif False:\n",
        "A cut that is refused halfway has lowered the log's end, and the core goes on with the old one.",
        Scenario(
            "test_refused_cut.py::test_a_follower_whose_cut_was_refused_halfway_copies_on_where_its_log_ends",
        ),
    ),
    Mutant(
        "refused-cut-keeps-producers",
        "H35",
        f"{BROKER}/runtime/partition_follower.py",
        "        self._partition.producers.are_stale = True\n",
        "        self._partition.producers.are_stale = False\n",
        "After a cut that was refused halfway a replica knows producers' batches that its log has lost.",
        Scenario(
            "test_refused_cut.py::test_a_follower_whose_cut_was_refused_halfway_copies_on_where_its_log_ends",
        ),
    ),
    Mutant(
        "flush-without-fsync",
        "H22",
        DURABILITY,
        "            self._filesystem.fsync(file.descriptor)\n",
        "            pass\n",
        "A flush moves the durable mark and syncs nothing.",
        Simulation(60, durability="fsync"),
    ),
    Mutant(
        "tail-cut-though-a-batch-follows",
        "H31",
        RECOVERY,
        "        if found or not self._proven:\n",
        "        if False:\n",
        "Whatever is bad behind the mark is cut, sound batches behind it included.",
        Test(
            "tests/unit/log/test_log_recovery.py::"
            "test_corruption_past_the_mark_with_a_valid_batch_behind_is_not_a_torn_tail",
            "The simulator corrupts only what the mark vouches for: what lies behind it may be torn as well.",
        ),
    ),
    Mutant(
        "mark-not-checked",
        "H31",
        RECOVERY,
        "        if not truncate_at_corruption:\n            _check_mark(segments, mark)\n",
        "        if False:\n            _check_mark(segments, mark)\n",
        "A log that ends before what was fsynced is opened as if it were whole.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_log_shorter_than_its_mark_is_corruption",
            "The simulator's disks flip bits; they do not shorten what was fsynced.",
        ),
    ),
    Mutant(
        "truncation-not-synced",
        "H32",
        LOG_TRUNCATION,
        "        self._durability.sync_file(file)\n",
        "",
        "Old blocks come back behind new ones after a power loss.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_crash_between_truncation_steps_leaves_a_whole_log",
            "The simulator's segments are smaller than a block of its disks, and the chain finds what comes back.",
        ),
    ),
    Mutant(
        "mark-not-lowered-before-the-cut",
        "H32",
        LOG_TRUNCATION,
        "            durability.write_checkpoint(lowered, both=True)\n",
        "",
        "A crash while a log is cut leaves a mark that lies beyond its end.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_crash_between_truncation_steps_leaves_a_whole_log",
            "The simulator's brokers die between events, and a truncation is one.",
        ),
    ),
    Mutant(
        "cut-keeps-epochs",
        "I6",
        LOG_TRUNCATION,
        "            durability.epochs_due |= self._epochs.cut_end(cut.offset)\n",
        "",
        "After a truncation the epoch file names epochs that the log has not.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_truncation_forgets_the_epochs_it_cuts",
            "What is appended next makes the epochs behind its offset give way.",
        ),
    ),
    Mutant(
        "cut-keeps-snapshots",
        "H48",
        LOG_TRUNCATION,
        "        self._snapshots.drop_above(cut.offset)\n",
        "",
        "After a truncation a snapshot of the producers knows of records that are gone.",
        Scenario("test_retries.py::test_a_record_that_was_cut_is_no_duplicate"),
    ),
    Mutant(
        "snapshot-beyond-the-end-stays",
        "H48",
        LOG,
        "        self.snapshots.drop_above(recovered.end.offset)\n",
        "",
        "After a loss of power a snapshot of the producers knows of records that are gone.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_a_snapshot_beyond_what_a_crash_left_is_removed_for_good",
            "A log must grow past a snapshot that outlived its records: rare in a seed's 2,000 events.",
        ),
    ),
    Mutant(
        "producers-from-unchecked-headers",
        "H33",
        f"{BROKER}/runtime/producer_state.py",
        "partition_log.reader.checked_headers(start)",
        "partition_log.reader.headers(start)",
        "A flipped bit in a header makes a producer's sequences wrong.",
        Test(
            "tests/unit/broker/test_broker_maintenance.py::test_producers_are_not_taken_from_a_rotten_header",
            "Rot must meet a producer's id below the mark: one seed in 20,000.",
        ),
    ),
    Mutant(
        "corruption-before-the-log-start-not-looked-for",
        "H33",
        f"{BROKER}/runtime/corruption.py",
        "        start = max(offset, partition_log.log_start_offset)",
        "        start = offset",
        "A leader whose first batch is corrupt never finds it, and no new replica gets past it.",
        Test(
            "tests/unit/broker/test_broker_maintenance.py::test_corruption_in_the_batch_that_holds_the_log_start_is_found",
            "The log start must lie inside the corrupt batch: one seed in 20,000.",
        ),
    ),
    Mutant(
        "chain-not-checked",
        "H32",
        SCAN,
        "    if header.previous_crc != before.crc:\n",
        "    if False:\n",
        "A batch of another log is taken for the next one where offset and epoch fit.",
        Test(
            "tests/unit/log/test_partition_log.py::test_replica_refuses_what_does_not_fit",
            "Truncations are synced, so that no old block is ever behind a new one.",
        ),
    ),
    Mutant(
        "corrupt-batch-accepted",
        "I17",
        SCAN,
        '    if crc32c(view[CRC_START:]) != header.crc:\n        return "the batch',
        '    if False:\n        return "the batch',
        "A follower takes a batch whose bytes were corrupt, and recovery takes a torn one.",
        Scenario("test_corruption.py::test_a_follower_refuses_what_its_leaders_disk_corrupt"),
    ),
    Mutant(
        "io-error-forgotten",
        "H34",
        f"{LOG_PACKAGE}/log_state.py",
        "            self.offline_error = failure\n",
        "            pass\n",
        "After a failed fsync the log goes on, and the next fsync says that all is well.",
        Test(
            "tests/unit/log/test_log_faults.py::test_io_error_takes_the_log_offline_for_ever",
            "The broker has taken the replica out of service by then, and exits.",
        ),
    ),
    Mutant(
        "part-of-a-batch-stays",
        "H35",
        LOG_WRITER,
        "        with state.disk():\n            self._truncation.remove_rest()\n        raise storage_full",
        "        state.uncut = False\n        raise storage_full",
        "A batch that the disk had no room for stays in part, with the next one behind it.",
        Test(
            "tests/unit/log/test_log_faults.py::test_full_disk_mid_append_leaves_no_trace",
            "The next append goes over it; only a crash before that shows it, as a torn tail.",
        ),
    ),
    Mutant(
        "removed-segment-taken-for-a-failed-disk",
        "H34",
        f"{LOG_PACKAGE}/segments.py",
        "            if at < 0 or self.items[at] is not segment:\n",
        "            if False:\n",
        "A look-up beside retention opens a file that was renamed.",
        Test(
            "tests/unit/log/test_log_look_ups.py::test_look_up_beside_retention_leaves_the_log_in_service",
            "The simulator's look-ups are done before anything else happens.",
        ),
    ),
    Mutant(
        "truncation-taken-for-corruption",
        "H33",
        f"{LOG_PACKAGE}/log_reader.py",
        "                if segment.cuts != cuts:\n                    raise _cut_meanwhile() from error\n"
        "                raise\n            finally",
        "                raise\n            finally",
        "A look-up beside a truncation calls the log corrupt.",
        Test(
            "tests/unit/log/test_log_look_ups.py::"
            "test_look_up_beside_a_truncation_finds_neither_corruption_nor_a_failed_disk",
            "The simulator's look-ups are done before anything else happens.",
        ),
    ),
    Mutant(
        "no-descriptor-taken-for-a-failed-disk",
        "H34",
        f"{LOG_PACKAGE}/errors.py",
        "    return error.errno in _NO_ROOM or error.errno in _BUSY\n",
        "    return error.errno in _NO_ROOM\n",
        "Too many open files take a log out of service for good.",
        Test(
            "tests/unit/log/test_log_look_ups.py::test_look_up_without_a_descriptor_is_refused",
            "The simulator's disks do not run out of descriptors.",
        ),
    ),
    Mutant(
        "full-disk-at-a-roll-takes-the-log-offline",
        "H35",
        LOG_WRITER,
        "            raise self._state.failed(error) from error\n        with",
        "            raise self._state.go_offline(error) from error\n        with",
        "No room for the file of a new segment takes the log out of service for good.",
        Test(
            "tests/unit/log/test_log_faults.py::test_full_disk_at_a_roll_is_refused_and_the_log_goes_on",
            "The simulator's disks are not full.",
        ),
    ),
    Mutant(
        "connections-not-bounded",
        "H35",
        f"{SERVER}/rpc.py",
        "        *connections,\n",
        "",
        "A flood of connections takes the descriptors of the log, the lease and etcd.",
        Test(
            "tests/unit/common/test_descriptors.py::test_connections_beyond_the_limit_are_closed_and_later_ones_served",
            "The simulator has no descriptors.",
        ),
    ),
    Mutant(
        "cut-forgotten-where-it-was-refused",
        "H35",
        LOG_WRITER,
        "        if state.uncut:\n            with state.disk():\n                self._truncation.remove_rest()\n",
        "",
        "After a cut that a full disk refused halfway, the log appends in front of what is left of its old end.",
        Test(
            "tests/unit/log/test_log_faults.py::test_cut_back_that_is_refused_comes_before_the_next_append",
            "The simulator's disks are not full.",
        ),
    ),
    Mutant(
        "slot-skipped-after-a-refused-write",
        "H37",
        CHECKPOINT,
        "                sequence = self._sequence + 1\n",
        "                sequence = self._sequence = self._sequence + 1\n",
        "After a checkpoint write that failed, the next one goes over the only valid slot.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_checkpoint_write_that_failed_is_tried_again_in_its_own_slot",
            "The simulator's disks are not full.",
        ),
    ),
    Mutant(
        "refused-fsync-made-good-by-a-second",
        "H34",
        DURABILITY,
        "            self._in_doubt = True\n            raise\n",
        "            raise\n",
        "After a refused fsync the next one says that all is well, of pages that it never wrote.",
        Test(
            "tests/unit/log/test_log_refusals.py::test_a_refused_fsync_is_not_made_good_by_a_second_one",
            "The simulator's disks are not full.",
        ),
    ),
    Mutant(
        "rolled-segment-closed-before-its-fsync",
        "H34",
        DURABILITY,
        "            closed.held_file = file\n            self._held += 1\n",
        "            self._files.unpin(file)\n",
        "The descriptor that a segment was written through is closed before its fsync, and no error is reported.",
        Test(
            "tests/unit/log/test_log_faults.py::test_rolled_segment_keeps_its_descriptor_until_it_is_synced",
            "The simulator's disks report an error to any descriptor.",
        ),
    ),
    Mutant(
        "idle-file-closed-before-its-fsync",
        "H34",
        LOG,
        "        is_unsynced = state.uncut or segments.active.dirty\n",
        "        is_unsynced = False\n",
        "The file of an idle log is closed with unsynced bytes, and an error of writing them back is lost.",
        Test(
            "tests/unit/log/test_log_open_files.py::"
            "test_a_failed_fsync_before_a_close_takes_its_log_offline_and_no_other",
            "The simulator's disks report an error to any descriptor.",
        ),
    ),
    Mutant(
        "closed-log-works",
        "H47",
        f"{LOG_PACKAGE}/log_state.py",
        "        if self.closed:\n",
        "        if False:\n",
        "A late call writes into the files of a log that was opened anew at the same place.",
        Test(
            "tests/unit/log/test_log_faults.py::test_closed_log_refuses_everything",
            "The simulator's calls are done before anything else happens.",
        ),
    ),
    Mutant(
        "new-segment-without-its-name",
        "H36",
        DURABILITY,
        "        if directory_dirty:\n",
        "        if False:\n",
        "A flush says that a new segment is durable while its name is not.",
        Simulation(60, changes=LOSING),
    ),
    Mutant(
        "replaced-without-fsync",
        "H36",
        CHECKPOINT,
        "        filesystem.fsync(descriptor)\n    finally:\n"
        "        filesystem.close(descriptor)\n    filesystem.rename",
        "        pass\n    finally:\n        filesystem.close(descriptor)\n    filesystem.rename",
        "A small file is renamed into place before its content is durable.",
        Test(f"{REPLACED}::test_what_was_replaced_stays_replaced", SMALL_FILE),
    ),
    Mutant(
        "replaced-without-its-name",
        "H36",
        CHECKPOINT,
        '    filesystem.rename(temporary, f"{directory}/{name}")\n    filesystem.fsync_directory(directory)\n',
        '    filesystem.rename(temporary, f"{directory}/{name}")\n',
        "A small file's new name is not durable when the caller goes on.",
        Test(f"{REPLACED}::test_what_was_replaced_stays_replaced", SMALL_FILE),
    ),
    Mutant(
        "one-checkpoint-slot",
        "H37",
        CHECKPOINT,
        "(sequence % 2) * SLOT_STRIDE)",
        "0)",
        "A torn write of the only slot takes the mark away.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_one_bad_checkpoint_slot_costs_only_work",
            "Without a mark all is scanned: the same log, more work.",
        ),
    ),
    Mutant(
        "checkpoint-checksum-ignored",
        "H37",
        CHECKPOINT,
        '    if len(slot) < _SLOT_BYTES or crc32c(slot[:-4]) != int.from_bytes(slot[-4:], "little"):\n',
        "    if len(slot) < _SLOT_BYTES:\n",
        "A corrupt slot says where the log starts and what of it is durable.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_both_checkpoint_slots_bad_scans_all_and_refuses_only_a_bad_tail",
            "The simulator corrupts logs, and its writes of one slot are never torn.",
        ),
    ),
    Mutant(
        "corrupt-index-believed",
        "H38",
        f"{LOG_PACKAGE}/index.py",
        "                if data is None or crc32c(data) != crc:\n",
        "                if data is None:\n",
        "A corrupt index leads reads astray.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_flip_anywhere_in_an_index_file_misleads_nobody",
            "The simulator corrupts logs only.",
        ),
    ),
    Mutant(
        "time-index-of-the-last-batch",
        "H44",
        f"{LOG_PACKAGE}/index.py",
        "        self.max_append_ms = max(self.max_append_ms, append_ms)\n"
        "        self.max_record_ms = max(self.max_record_ms, record_ms)\n",
        "        self.max_append_ms = append_ms\n        self.max_record_ms = record_ms\n",
        "A time that is only in a batch before later ones of earlier times is not found.",
        Test(
            "tests/unit/log/test_partition_log.py::test_a_time_that_later_batches_are_before_is_found",
            "Nobody in the simulator looks up an offset by its time.",
        ),
    ),
    Mutant(
        "clean-marker-stays",
        "H39",
        f"{LOG_PACKAGE}/directory.py",
        "    if filesystem.exists(marker_path):\n        filesystem.unlink(marker_path)\n",
        "    if False:\n        filesystem.unlink(marker_path)\n",
        "A crash after a clean stop and a start is taken for a clean stop.",
        Test(
            "tests/unit/log/test_log_clean_marker.py::test_a_clean_stop_is_known_to_the_next_start_only",
            "The marker names the session that it ended, and a later one is not taken for it: no record is lost by it.",
        ),
    ),
    Mutant(
        "marker-though-a-log-failed",
        "H40",
        f"{LOG_PACKAGE}/directory.py",
        "                clean = clean and not log.offline\n",
        "",
        "A stop counts as clean though a log could not be flushed.",
        Test(
            "tests/unit/log/test_log_clean_marker.py::test_no_stop_is_clean_where_a_log_has_failed",
            "The simulator's brokers, like the shipped one, ask for no marker then.",
        ),
    ),
    Mutant(
        "retention-beyond-the-high-watermark",
        "I18",
        f"{LOG_PACKAGE}/removal.py",
        "        if age.end_offset > high_watermark or not (too_old or too_many):\n",
        "        if not (too_old or too_many):\n",
        "Retention takes records that are not committed yet.",
        Test(
            "tests/unit/log/test_partition_log.py::"
            "test_retention_by_time_takes_whole_old_segments_below_the_high_watermark",
            "The simulator's topics keep everything; administrators delete records there.",
        ),
    ),
    Mutant(
        "retention-at-a-jumped-clock",
        "H43",
        f"{BROKER}/runtime/maintenance.py",
        "    return None if context.clock_doubt() else context.now_ms()\n",
        "    return context.clock.now_ms()\n",
        "A clock that jumps ahead lets retention take everything.",
        Test(
            "tests/unit/broker/test_broker_maintenance.py::test_a_clock_in_doubt_deletes_and_forgets_nothing",
            "The simulator's topics keep everything.",
        ),
    ),
    Mutant(
        "doubt-ends-after-a-round",
        "H43",
        f"{SERVER}/clock_watch.py",
        "            return  # It has jumped.\n",
        "            self._difference_ms += gap_ms\n",
        "A clock that has jumped is believed when it is asked for the next time.",
        Test(
            "tests/unit/common/test_clock_watch.py::test_a_jump_is_doubted_until_it_is_taken_back",
            "In the simulator other processes soon confirm a clock, or disprove it.",
        ),
    ),
    Mutant(
        "wrong-clock-at-the-start-believed",
        "H43",
        f"{SERVER}/clock_watch.py",
        "        if self._last_seen_ms and not self._confirmed and abs(apart_ms) > self._limit_ms:\n",
        "        if False:\n",
        "A process that starts with a wrong clock deletes by it.",
        Simulation(100, changes=CLOCKS),
    ),
    Mutant(
        "recovery-without-a-time",
        "H43",
        f"{COORDINATOR}/recover_metadata.py",
        "*backup.groups, *versions, clock]",
        "*backup.groups, *versions]",
        "A broker without records believes any clock under a new generation, and confirms it to others.",
        Test(
            "tests/unit/coordinator/test_recover_metadata.py"
            "::test_processes_of_the_new_generation_measure_their_clocks_by_the_operators",
            "Two clocks have to be wrong by as much at the same time.",
        ),
    ),
    Mutant(
        "doubtful-clock-of-another-believed",
        "H43",
        f"{SERVER}/clock_watch.py",
        "if not each.doubtful}",
        "}",
        "Processes of one machine whose clock has jumped confirm each other.",
        Test(
            "tests/unit/common/test_clock_watch.py::test_processes_of_one_machine_do_not_confirm_each_others_jump",
            "The simulator's topics keep everything.",
        ),
    ),
    Mutant(
        "offsets-expire-by-a-clock-in-doubt",
        "H70",
        f"{COORDINATOR}/runtime/group_maintenance.py",
        "        return not self._clock_doubt()\n",
        "        return True\n",
        "A coordinator whose clock has jumped removes the offsets of groups that are empty for an hour.",
        Test(
            "tests/unit/coordinator/test_group_offsets.py::test_no_group_expires_while_the_clock_is_in_doubt",
            "The simulator's coordinators do not expire groups.",
        ),
    ),
    Mutant(
        "log-start-not-persisted-first",
        "I18",
        f"{LOG_PACKAGE}/log_retention.py",
        "                durability.write_checkpoint(Checkpoint(offset, high_watermark, state.flushed), both=True)\n",
        "",
        "Segments go before the log start that lies behind them is durable.",
        Scenario("test_log_start.py::test_the_log_start_outlives_a_power_loss"),
    ),
    Mutant(
        "empty-segment-not-used-again",
        "H47",
        f"{LOG_PACKAGE}/open_files.py",
        "            if files.filesystem.size(file.descriptor):\n",
        "            if True:\n",
        "An empty segment file that a crash left takes the log out of service.",
        Test(
            "tests/unit/log/test_partition_log.py::test_empty_segment_file_that_a_crash_left_is_used_again",
            "Opening a log finds such a file among its segments and goes on in it.",
        ),
    ),
    Mutant(
        "epoch-without-records-stays",
        "H2",
        EPOCHS,
        "        while self._starts and self._starts[-1] >= start_offset:\n",
        "        while False:\n",
        "An epoch in which nothing was appended stays in the epoch file, beside the one that begins at its offset.",
        Test(
            "tests/unit/log/test_log_epochs.py::test_an_epoch_without_records_gives_way",
            "Both end at the same offset, so that no fetch is judged in another way.",
        ),
    ),
    Mutant(
        "epoch-not-persisted",
        "H2",
        LOG,
        "            self.durability.epochs_due |= self._epochs.assign(leader_epoch, self._state.end.offset)\n",
        "            self._epochs.assign(leader_epoch, self._state.end.offset)\n",
        "A leader serves before the start of its epoch is durable.",
        Test(
            "tests/unit/log/test_log_epochs.py::test_the_start_of_an_epoch_is_durable_when_it_is_said_to_be",
            "An epoch without a record decides nothing but where the next one begins.",
        ),
    ),
    Mutant(
        "end-of-an-unknown-epoch",
        "H2",
        EPOCHS,
        "        at = bisect_right(self._epochs, epoch) - 1\n        if at < 0:\n            return None\n",
        "        at = bisect_right(self._epochs, epoch) - 1\n"
        "        if at < 0 or self._epochs[at] != epoch:\n            return None\n",
        "A leader that does not know a follower's epoch names no epoch that both may have.",
        Test(
            "tests/unit/log/test_log_epochs.py::test_an_epoch_that_is_not_known_ends_where_the_largest_below_it_does",
            "A follower that is told of no common epoch copies the whole log again, and ends with the same.",
        ),
    ),
    Mutant(
        "other-directory-taken",
        "H42",
        f"{LOG_PACKAGE}/identity.py",
        "            if stored[name] != value:\n",
        "            if False:\n",
        "A broker serves the data directory of another cluster or broker.",
        Test(
            "tests/unit/log/test_log_directory.py::test_directory_of_another_is_refused_and_left_alone",
            "The simulator's disks stay in their machines.",
        ),
    ),
    Mutant(
        "read-beyond-the-end-asked-for",
        "I10",
        f"{LOG_PACKAGE}/log_reader.py",
        "            if header.end_offset > limit_offset or (end_position",
        "            if (end_position",
        "A consumer is given records above the high watermark.",
        Simulation(60),
    ),
)
