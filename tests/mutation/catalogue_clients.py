"""Rules of producers and readers: sequences, outcomes, positions, batches that enter and leave, and Spark's tasks."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Simulation, Test, drop, never, replace

SOUND_BATCHES = "The simulator's producers send sound, uncompressed batches."
NO_CUTS = "The simulator cuts few logs while a broker sends their bytes."
NO_LOSS = "Few simulated producers give up after a connection was lost."
NO_SPARK = "The simulator runs no query."
FAILOVERS = {"faults": ("kill", "isolate", "pause", "move leader"), "fault_period_ms": 500}

CLIENTS = (
    Mutant(
        "several-in-flight-without-sequences",
        "I21",
        "InFlightRequests._may_send",
        replace(
            "partition_queue.recovering or partition_queue.needs_epoch or not self._idempotent",
            "partition_queue.recovering or partition_queue.needs_epoch",
        ),
        "A producer without an id sends a batch while an earlier one may still fail and be sent again.",
        Test(
            "tests/unit/client/producer/test_inflight.py::test_without_a_producer_id_one_request_flies",
            "The simulator's producers without an id are those with acks=0, which send nothing again.",
        ),
    ),
    Mutant(
        "slow-partitions-one-after-the-other",
        "I21",
        "ProduceHandler._append_each",
        replace(
            "appended = self._begin(partition, part, batches, work)",
            "appended = await self._append(partition, part, batches, work)",
        ),
        "While a request waits for the disk in one partition, the next one of its connection overtakes it in another.",
        Simulation(20, changes={"partitions": 4, "slow_append_ms": 0}),
    ),
    Mutant(
        "overtaking-batch-taken-for-a-gap",
        "I21",
        "InFlightRequests._comes_back",
        replace(
            "batch.sent_behind",
            "any(other.serial < batch.serial for other in (*partition_queue.flying, *partition_queue.queued))",
        ),
        "A batch that came before an earlier one, which is acknowledged by now, fails for good with a kept identity.",
        Test(
            "tests/unit/client/producer/test_inflight.py::test_a_batch_that_overtook_one_that_is_acknowledged_by_now_is_sent_again",
            "The simulator's producers have assigned ids: they begin a new epoch, and lose only time.",
        ),
    ),
    Mutant(
        "position-kept-in-another-life",
        "H26",
        "PartitionFetchState.was_replaced",
        replace("self.topic_id or topic_id", "topic_id"),
        "An offset of a deleted topic is read on from in the one that was created again.",
        Simulation(200, changes={"faults": ("topic made anew", "isolate", "pause"), "fault_period_ms": 700}),
    ),
    Mutant(
        "duplicates-appended",
        "H48",
        "ProducerWindows.check",
        replace("_find_duplicate(producer, base_sequence, record_count)", "None"),
        "A retry of a batch that was written is written again.",
        Simulation(60),
    ),
    Mutant(
        "new-producer-forgets-one-that-may-retry",
        "H49",
        "ProducerWindows._check_room",
        never("silent_ms < self._retry_window_ms"),
        "A flood of producer ids makes the brokers store retries of others twice.",
        Simulation(
            40,
            changes={
                "forgets": True,
                "faults": ("isolate", "pause", "kill"),
                "fault_period_ms": 400,
                "producers": (-1, -1, -1, -1, -1, -1),
            },
        ),
    ),
    Mutant(
        "gaps-appended",
        "H50 I20",
        "ProducerWindows.check",
        replace(
            "base_sequence == producer.next_sequence", "sequence_distance(producer.next_sequence, base_sequence) >= 0"
        ),
        "A batch behind a gap is written.",
        Simulation(60),
    ),
    Mutant(
        "duplicates-in-a-run-appended",
        "H48",
        "_small_run",
        never(
            "producer_id >= 0 and producers.check(producer_id, producer_epoch, base_sequence, run.record_count, now_ms)"
        ),
        "A retry of many small batches that were written is written again.",
        Simulation(60),
    ),
    Mutant(
        "gaps-in-a-run-appended",
        "H50 I20",
        "continuing",
        replace("_leading(is_next)", "len(run)"),
        "A small batch behind a gap is written with those before it.",
        Test(
            "tests/unit/broker/test_broker_batch_runs.py::test_many_batches_are_appended_as_they_are_one_by_one",
            "The simulator's producers hardly ever send a gap and what is behind it in one request.",
        ),
    ),
    Mutant(
        "sequences-reassigned-in-doubt",
        "H51",
        "ProducerIdentity._raise_epoch",
        never("partition_queue.queued[0].outcome_unknown"),
        "A batch that may have been written gets a new epoch and sequence, and is written twice.",
        Simulation(200, changes=FAILOVERS),
    ),
    Mutant(
        "lost-leadership-called-definite",
        "H52",
        "PartitionReplica.lost",
        replace("Outcome.UNKNOWN", "Outcome.NOT_APPLIED"),
        "A produce whose leader was deposed is reported as not applied, and the next leader commits it.",
        Test(
            "tests/unit/broker/test_broker_replica.py::test_losing_leadership_leaves_waiting_produces_unknown",
            "The shipped producer sends the batch again with its sequence, and seldom gives up in between.",
        ),
    ),
    Mutant(
        "unknown-outcome-called-failed",
        "H52 I22",
        "InFlightRequests._end",
        never("batch.outcome_unknown and error.outcome == Outcome.NOT_APPLIED"),
        "A batch that an earlier try may have written is reported as certainly not written.",
        Simulation(
            100,
            changes={**FAILOVERS, "gives_up": True},
        ),
    ),
    Mutant(
        "producer-ids-by-chance-the-same",
        "H53",
        "ClusterServicer.InitProducerId",
        replace("OWN_PRODUCER_IDS", "3"),
        "Two producers get one id: what the second one sends is taken for a repeat of what the first one sent.",
        Simulation(5),
    ),
    Mutant(
        "old-producer-epoch-taken",
        "H54",
        "ProducerWindows.check",
        never("producer_epoch < producer.epoch"),
        "A batch of an epoch that its producer has given up is written behind those of the new one.",
        Test(
            "tests/unit/broker/test_broker_producers.py::test_epochs_fence",
            "The simulator's producers begin an epoch only when nothing of the old one is under way.",
        ),
    ),
    Mutant(
        "failed-batch-moves-to-another-partition",
        "H55",
        "InFlightRequests._part_failed",
        replace(
            "self.counts.retries += sum(batch.count for batch in back)",
            (
                "self.counts.retries += sum(batch.count for batch in back)\n"
                "partition_queue = next(iter(self._waiting), partition_queue)"
            ),
        ),
        "What failed in one partition is queued for another one.",
        Simulation(50, changes={**FAILOVERS, "partitions": 2}),
    ),
    Mutant(
        "received-records-await-more",
        "H159",
        "ConsumerCore._receive_batches",
        replace(
            "decoded = self._further_decoded_batch(left)",
            "decoded = yield from self._first_decoded_batch(timeout, left)",
        ),
        "A poll that is cancelled loses the records that it had received.",
        Simulation(60),
    ),
    Mutant(
        "left-loop-drops-the-rest",
        "H159",
        "ConsumerCore.settle",
        never("delivered < decoded.end - decoded.start"),
        "A loop that is left takes the records of its batch with it which it has not yielded.",
        Simulation(60),
    ),
    Mutant(
        "accepted-record-awaits-its-return",
        "H159",
        "ProducerCore.append_waiting",
        replace("return done", "yield Pause(0.003)\nreturn done"),
        "A send that is cancelled has accepted its record: sent again it is stored twice.",
        Simulation(100),
    ),
    Mutant(
        "reset-to-the-end",
        "H143",
        "position_after",
        never('auto_offset_reset == "earliest"'),
        "A reader whose next records were removed leaves out all that are left, too.",
        Simulation(
            200, changes={"faults": ("delete records", "pause"), "fault_period_ms": 400, "produce_period_ms": 20}
        ),
    ),
    Mutant(
        "stream-reads-on-in-a-replaced-log",
        "H143",
        "HeadraceStreamReader._truncations",
        replace("self._cluster().truncation_points(...)", "{}"),
        "A stream continues at its offset although an unclean election put other records there.",
        Test(
            "tests/unit/spark/test_spark_stream_truncation.py::test_records_that_an_election_replaced_are_a_loss",
            NO_SPARK,
        ),
    ),
    Mutant(
        "rows-divided-anew-stored-again",
        "H144",
        "TaskWriter._defers",
        replace("self._stored.read(target.earlier)", "()"),
        "A micro-batch that is tried with another number of tasks stores rows twice.",
        Test("tests/unit/spark/test_spark_retries.py::test_another_number_of_tasks_stores_each_row_once", NO_SPARK),
    ),
    Mutant(
        "columns-not-checked",
        "H145",
        "check_produced",
        drop("check_columns(...)"),
        "A leader appends an uncompressed batch that no reader can decode.",
        Test("tests/security/test_poison_entering.py::test_batch_that_no_reader_decodes_is_refused", SOUND_BATCHES),
    ),
    Mutant(
        "ratio-not-looked-at",
        "H146",
        "check_columns",
        never("header.payload_bytes > MAX_RATIO * stored_bytes"),
        "A few bytes inflate to any size below max_payload_bytes.",
        Test("tests/security/test_poison_entering.py::test_batch_that_no_reader_decodes_is_refused", SOUND_BATCHES),
    ),
    Mutant(
        "passed-though-it-should-fail",
        "H147",
        "pass_corrupt_batch",
        never('config.on_corrupt_batch == "fail"'),
        "A reader loses records although its configuration forbids it.",
        Test(
            "tests/unit/client/fetch/test_corrupt_batches.py::test_error_says_that_every_replica_has_it_so",
            "The simulator corrupts no batch on all replicas: readers get it from another one.",
        ),
    ),
    Mutant(
        "answer-used-before-its-verdict",
        "H148",
        "NativeCalls._answered",
        never("kind == Kind.ANSWER and frame.header.flags & CONFIRMED"),
        "A reader takes bytes that the log no longer holds.",
        Test("tests/unit/client/net/test_native.py::test_what_the_broker_discards_is_not_used", NO_CUTS),
    ),
    Mutant(
        "verdict-never-asked-for",
        "H148",
        "FramedConnection._send",
        replace("is_valid is None or is_valid()", "True"),
        "A broker confirms bytes of a log that was cut while it sent them.",
        Test("tests/unit/common/test_native_server.py::test_a_log_that_was_cut_meanwhile_is_discarded", NO_CUTS),
    ),
    Mutant(
        "lost-means-not-sent",
        "H149",
        "lost_connection",
        replace("Outcome.UNKNOWN", "Outcome.NOT_APPLIED"),
        "What was sent on a connection that is lost counts as not applied, and may be applied twice.",
        Test("tests/unit/client/net/test_native.py::test_a_lost_connection_leaves_the_outcome_unknown", NO_LOSS),
    ),
)
