"""Rules of clients: which metadata counts, which life of a topic is meant, what becomes of a batch that failed."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, CLIENT, SERVER, Mutant, Simulation, Test

VERSIONS = f"{CLIENT}/net/topic_versions.py"
INFLIGHT = f"{CLIENT}/producer/inflight.py"
IDENTITY = f"{CLIENT}/producer/producer_identity.py"
POSITION = f"{CLIENT}/fetch/partition_fetch_state.py"
CALLS = f"{CLIENT}/net/bootstrap_client.py"
VIEW = f"{SERVER}/metadata_view.py"
SPARK = "sdk/headrace/spark"
NO_SPARK = "The simulator runs no query."
TRUNCATION = "tests/unit/spark/test_spark_stream_truncation.py::test_records_that_an_election_replaced_are_a_loss"
RETRIES = "tests/unit/spark/test_spark_retries.py"
ANEW = {"faults": ("topic made anew", "isolate", "pause"), "fault_period_ms": 700}
"""Lives of a topic that end under every kind of client, and brokers that hear late of it."""
FAILOVERS = {"faults": ("kill", "isolate", "pause", "move leader"), "fault_period_ms": 500}
TWO_PARTITIONS = {**FAILOVERS, "partitions": 2}
REMOVING = {"faults": ("delete records", "pause"), "fault_period_ms": 400, "produce_period_ms": 20}
SELDOM = "The simulator's servers seldom fall so far behind each other: a property test drives the shipped core there."
DISPATCH = "tests/property/test_client_dispatch.py::test_an_idempotent_producer_neither_loses_doubles_nor_reorders"

CLIENTS = (
    Mutant(
        "older-metadata-believed",
        "H26",
        VERSIONS,
        "            if known is not None and version < known.version and _claims_other(topic, known.topic_id):\n",
        "            if False:\n",
        "An answer of any age deletes a topic or brings an old life of it back.",
        Test(DISPATCH, SELDOM),
    ),
    Mutant(
        "restored-cluster-locks-clients-out",
        "H81",
        VERSIONS,
        "    return MetadataVersion(response.generation, response.revision)\n",
        "    return MetadataVersion(0, response.revision)\n",
        "After a restore from a backup nothing counts until the old revision is reached again.",
        Test(
            "tests/unit/client/producer/test_stale_metadata.py::test_a_restored_cluster_is_believed_at_its_lower_revision",
            "The simulator restores no cluster.",
        ),
    ),
    Mutant(
        "no-other-server-asked",
        "H84",
        CALLS,
        "            if problem:\n",
        "            if False:\n",
        "The first answer is taken although newer metadata refutes it.",
        Test(
            "tests/unit/client/net/test_bootstrap_client.py"
            "::test_another_server_is_asked_where_an_answer_is_older_than_what_is_known",
            SELDOM,
        ),
    ),
    Mutant(
        "unreadable-topic-called-absent",
        "H26",
        VIEW,
        "                    if reference.name in self._unreadable_topics():\n",
        "                    if False:\n",
        "A topic whose value cannot be read is answered as one that is not there.",
        Test(
            "tests/unit/common/test_metadata_view.py::test_a_topic_whose_value_cannot_be_read_is_not_called_absent",
            "The simulator writes no value that cannot be read.",
        ),
    ),
    Mutant(
        "lower-epoch-believed",
        "H4",
        f"{CLIENT}/net/cluster_metadata.py",
        "    merged = [new if new.epoch >= old.epoch else old for old, new in zip(known, given, strict=False)]\n",
        "    merged = [new for _, new in zip(known, given, strict=False)]\n",
        "A client sends to the leader of an epoch that is over, because the server that it asked was behind.",
        Simulation(100, changes=FAILOVERS),
    ),
    Mutant(
        "open-batch-of-another-life",
        "H26",
        f"{CLIENT}/fetch/subscription_state.py",
        "        if partition is None or generation < partition.placed:\n",
        "        if partition is None:\n",
        "The rest of a deleted topic's batch is delivered as if it stood in the topic that has its name.",
        Test(
            "tests/unit/client/fetch/test_subscription_state.py::test_what_was_fetched_before_a_seek_is_received_no_more",
            "It takes a batch that is open in the very moment: the simulator met it once in a hundred seeds.",
        ),
    ),
    Mutant(
        "reset-to-the-end",
        "H143",
        f"{CLIENT}/fetch/offset_resets.py",
        '        return earliest if auto_offset_reset == "earliest" else latest\n',
        "        return latest\n",
        "A reader whose next records were removed leaves out all that are left, too.",
        Simulation(200, changes=REMOVING),
    ),
    Mutant(
        "reader-stops-short",
        "I15",
        POSITION,
        "        return self.end_offset is not None and self.position >= self.end_offset\n",
        "        return self.end_offset is not None and self.position >= self.end_offset - 1\n",
        "A reader of a bounded part ends before its last record.",
        Simulation(40),
    ),
    Mutant(
        "high-watermark-told-as-asked-for",
        "I8",
        f"{BROKER}/rpc/fetch.py",
        "        result.high_watermark = replica.high_watermark\n",
        "        result.high_watermark = min(replica.high_watermark, each.request.offset)\n",
        "A Fetch names as the high watermark what its caller has read, so that it falls from one caller to the next.",
        Simulation(10),
    ),
    Mutant(
        "old-life-sent-to-new-leaders",
        "H26",
        INFLIGHT,
        "self._cluster_metadata.leader(partition_queue.where, partition_queue.topic_id)\n",
        "self._cluster_metadata.leader(partition_queue.where)\n",
        "Batches of a deleted topic fly to the leaders of the new one again and again, and never end.",
        Test(DISPATCH, SELDOM),
    ),
    Mutant(
        "position-kept-in-another-life",
        "H26",
        POSITION,
        "        self.topic_id = self.topic_id or topic_id\n",
        "        self.topic_id = topic_id\n",
        "An offset of a deleted topic is read on from in the one that was created again.",
        Simulation(200, changes=ANEW),
    ),
    Mutant(
        "old-metadata-loses-a-new-position",
        "H26",
        POSITION,
        '        self.replaced_by = topic_id if answer > self.compared_answer else b""\n',
        "        self.replaced_by = topic_id\n",
        "A position of a newer life than the metadata counts as lost.",
        Test(
            "tests/unit/client/fetch/test_subscription_state.py::test_a_position_of_a_newer_life_waits_for_the_metadata_to_reach_it",
            SELDOM,
        ),
    ),
    Mutant(
        "records-deleted-in-another-life",
        "H26",
        f"{CLIENT}/admin/broker_calls.py",
        "                _check_life(topic, topic_id, topic_leaders.topic_id)\n",
        "                topic_id = topic_leaders.topic_id\n",
        "An offset that was looked up in one topic deletes records of the next one of its name.",
        Test(
            "tests/unit/client/admin/test_admin_replication.py"
            "::test_records_are_deleted_in_the_topic_in_which_the_end_was_looked_up",
            "No simulated client deletes records by an offset that it looked up.",
        ),
    ),
    Mutant(
        "sequences-reassigned-in-doubt",
        "H51",
        IDENTITY,
        "        if partition_queue.queued and partition_queue.queued[0].outcome_unknown:\n            return\n",
        "        if False:\n            return\n",
        "A batch that may have been written gets a new epoch and sequence, and is written twice.",
        Simulation(200, changes=FAILOVERS),
    ),
    Mutant(
        "sequences-of-an-earlier-life",
        "H51",
        IDENTITY,
        "            epoch, partition_queue.needs_epoch = before.epoch, True\n",
        "            pass\n",
        "A topic that is there again is sent other records under the sequences of those that it has, and drops them.",
        Test(
            "tests/unit/client/producer/test_inflight.py::test_a_topic_that_is_there_again_is_sent_to_in_a_new_epoch",
            "etcd has to be put back to just before a deletion: one seed in some.",
        ),
    ),
    Mutant(
        "failed-batch-moves-to-another-partition",
        "H55",
        INFLIGHT,
        "        partition_queue.put_back(back)\n"
        "        if partition_queue.queued:\n            self._waiting[partition_queue] = None\n",
        "        partition_queue = next(iter(self._waiting), partition_queue)\n        partition_queue.put_back(back)\n"
        "        if partition_queue.queued:\n            self._waiting[partition_queue] = None\n",
        "What failed in one partition is queued for another one.",
        Simulation(50, changes=TWO_PARTITIONS),
    ),
    Mutant(
        "stream-reads-on-in-a-replaced-log",
        "H143",
        f"{SPARK}/stream_reader.py",
        "        found = self._cluster().truncation_points(known, before.topic_ids)\n",
        "        found: dict[TopicPartition, int] = {}\n",
        "A stream goes on at its offset although an unclean election put other records there.",
        Test(TRUNCATION, NO_SPARK),
    ),
    Mutant(
        "checkpoint-without-epochs",
        "H143",
        f"{SPARK}/stream_offsets.py",
        "        if self.epochs:\n            written[EPOCHS]",
        "        if False:\n            written[EPOCHS]",
        "A stream's checkpoint forgets of which leader epoch it has read.",
        Test(TRUNCATION, NO_SPARK),
    ),
    Mutant(
        "rows-divided-anew-stored-again",
        "H144",
        f"{SPARK}/task_writer.py",
        "            for where, task, decoded, _ in self._stored.read(target.earlier):\n",
        "            for where, task, decoded, _ in ():\n",
        "A micro-batch that is tried with another number of tasks stores rows twice.",
        Test(f"{RETRIES}::test_another_number_of_tasks_stores_each_row_once", NO_SPARK),
    ),
    Mutant(
        "row-of-two-tasks-stored-once",
        "H144",
        f"{SPARK}/retries.py",
        "        return +self._counts\n",
        "        return Counter()\n",
        "Where two tasks have the same row and one record of it is stored, both take it for theirs.",
        Test(f"{RETRIES}::test_the_same_row_in_several_tasks_is_stored_as_often_as_it_is_there", NO_SPARK),
    ),
    Mutant(
        "changed-rows-stored-beside-the-first",
        "H144",
        f"{SPARK}/task_writer.py",
        "        if strange and any(strange[",
        "        if False and any(strange[",
        "A task whose rows have changed since the first try stores them, too.",
        Test(f"{RETRIES}::test_other_rows_are_refused_before_anything_is_stored", NO_SPARK),
    ),
    Mutant(
        "another-tries-records-taken-for-ones-own",
        "H144",
        f"{SPARK}/task_writer.py",
        "            if self._options.idempotent_retries and future.batch.repeated:\n",
        "            if False:\n",
        "A task believes that its rows are stored where another try of it has stored others under their sequences.",
        Test(f"{RETRIES}::test_a_task_is_tried_again_while_the_first_try_is_still_at_work", NO_SPARK),
    ),
)
