"""Rules of copies of another log: what is appended to a mirror, and what of it is not the source's."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Simulation, Test, always, drop, never, replace

LOG = "tests/unit/log/test_log_copies.py::"
BROKER = "tests/unit/broker/test_broker_copies.py::"
PROPERTY = "tests/property/test_property_copies.py::test_a_copy_has_what_its_source_has"
MIRROR = {
    "mirrors": True, "compacts": False, "is_table": False, "retention_ms": -1, "forgets": False, "faults": ("kill",),
}  # fmt: skip
NO_COMPACTION = "The copied log of the simulator has no compacted batches."
KEPT_BY_THE_CHAIN = "The simulator notices copies only behind a producer's batch, where the chain refuses them, too."
ERRORS = "The checksums of the next check cover it as well, and give another error, after which no test looks here."

COPIES = (
    Mutant(
        "copies-without-chain",
        "H157 I33",
        "_check_copies",
        never("header.previous_crc != before.crc"),
        "Copies of another log are refused as corrupt, and not as those of a log that has diverged.",
        Test(LOG + "test_what_does_not_continue_the_log_is_refused_as_a_whole", ERRORS),
    ),
    Mutant(
        "copies-anywhere",
        "H157 I33",
        "_check_copies",
        never("header.base_offset != before.offset"),
        "A copy that was appended before is refused as corrupt, and its copier ends.",
        Test(LOG + "test_what_does_not_continue_the_log_is_refused_as_a_whole", ERRORS),
    ),
    Mutant(
        "copies-keep-their-epoch",
        "H157 I5",
        "PartitionLog.append_copies",
        replace(
            "stamp(header, base_offset=header.base_offset, append_timestamp_ms=header.append_timestamp_ms,"
            " leader_epoch=leader_epoch, previous_crc=header.previous_crc)",
            "stamp(header, base_offset=header.base_offset, append_timestamp_ms=header.append_timestamp_ms,"
            " leader_epoch=header.leader_epoch, previous_crc=header.previous_crc)",
        ),
        "The mirror's log has leader epochs of another cluster, by which its followers cannot be compared.",
        Simulation(3, changes=MIRROR),
    ),
    Mutant(
        "parts-of-a-gap-at-once",
        "H157",
        "_of_one_segment",
        never("header.end_offset - headers[0].base_offset > MAX_COMPACTED_OFFSETS"),
        "A segment has offsets that its index cannot name.",
        Test(LOG + "test_offsets_that_no_segment_has_together", NO_COMPACTION),
    ),
    Mutant(
        "producers-of-a-mirror",
        "I33",
        "check_produced",
        never("config.mirror"),
        "Producers write to a mirror before it is promoted.",
        Simulation(3, changes=MIRROR),
    ),
    Mutant(
        "copies-to-any-topic",
        "I33",
        "PartitionAppender._check_copying",
        drop("check_mirror(self._partition.topic, self._partition.config)"),
        "A topic that is no mirror, any more, takes copies.",
        Test(BROKER + "test_a_topic_that_is_no_mirror_takes_none", KEPT_BY_THE_CHAIN),
    ),
    Mutant(
        "copies-not-checked-again",
        "I33",
        "PartitionAppender._append_copies",
        replace(
            "self._check_copying(known_epoch, committed=committed)\n"
            "result.leader_epoch, result.log_start_offset = self._replica.leader_epoch, self._replica.known_log_start",
            "result.leader_epoch, result.log_start_offset = self._replica.leader_epoch, self._replica.known_log_start",
        ),
        "A mirror that is promoted while copies are inflated takes them.",
        Test(BROKER + "test_a_mirror_that_is_promoted_during_the_checks_takes_no_copy", KEPT_BY_THE_CHAIN),
    ),
    Mutant(
        "log-end-before-the-lock",
        "H157",
        "PartitionAppender._append_copies",
        replace("result = AppendResult()", "result, early = AppendResult(), self._partition.open_log.end"),
        "A copier is told the log end before the copies of another one, and sends its own there again and again.",
        Test(BROKER + "test_the_log_end_is_that_behind_earlier_copies", "There it asks again after a while."),
        also=(("PartitionAppender._append_copies", replace("end = self._partition.log.end", "end = early")),),
        second_line="None: the line is moved, which takes two edits.",
    ),
    Mutant(
        "copiers-that-only-write",
        "I33",
        "ProduceHandler._append_each",
        never("work.as_copies"),
        "Who may write to a topic chooses offsets and append times.",
        Test(BROKER + "test_a_copier_may_alter_the_topic", "The simulator has one user."),
    ),
    Mutant(
        "copies-of-other-codecs-not-inflated",
        "H145",
        "PartitionAppender._append_copies",
        replace("copied_config(self._partition.config)", "self._partition.config"),
        "A compressed copy that no reader can decode is appended, if producers may not use its codec.",
        Test(BROKER + "test_compressed_copies_are_inflated_whatever_the_topic_allows", "Clients of it encode rightly."),
    ),
    Mutant(
        "copies-behind-removed-deletions",
        "H151 I33",
        "lacks_deletions",
        never("log.log_start_offset < log.log_end_offset"),
        "A mirror keeps a record whose deletion its source has removed.",
        Test(PROPERTY, NO_COMPACTION),
    ),
    Mutant(
        "removed-deletions-not-noted",
        "H151",
        "PartitionAppender._write_some",
        never("lacks_deletions(partition_log, deletions_end)"),
        "A mirror does not know which deletions it may lack, nor do its followers.",
        Test(BROKER + "test_removed_deletions_are_noted_before_the_copies", NO_COMPACTION),
    ),
    Mutant(
        "straddling-batch-kept",
        "I33",
        "fitting",
        replace("rest_of(view, header, end)", "view"),
        "A compacted batch that begins within the copy is sent whole, and the copy never continues.",
        Test(PROPERTY, NO_COMPACTION),
    ),
    Mutant(
        "rest-of-a-batch-with-all-records",
        "I33",
        "rest_of",
        always("offsets >= start.offset"),
        "The rest of a compacted batch has the records before it, too.",
        Test(PROPERTY, NO_COMPACTION),
    ),
    Mutant(
        "settings-before-the-key",
        "I33",
        "ReplicaManager._reconcile",
        replace(
            "partition.update_config(topic.config)",
            "partition.update_config(topic.config)\nawait partition.update_log_settings()",
        ),
        "A leader that is deposed, and does not know, serves producers of a mirror that is promoted.",
        Test(
            "tests/unit/broker/test_broker_settings_order.py::"
            "test_no_leader_is_deposed_later_than_it_takes_up_the_settings",
            "The write of the log's settings is short there.",
        ),
    ),
)
