"""Rules of idempotent producers: sequences, epochs, what a retry is answered, and what its outcome is called."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, COORDINATOR, Mutant, Scenario, Simulation, Test

WINDOWS = f"{BROKER}/core/producers.py"
REBUILD = f"{BROKER}/runtime/producer_state.py"
REPLICA = f"{BROKER}/core/replica.py"
LEADERSHIP = f"{BROKER}/core/leadership.py"
FLOOD = {
    "forgets": True,
    "faults": ("isolate", "pause", "kill"),
    "fault_period_ms": 400,
    "producers": (-1,) * 6,
}
"""More producers that end and begin anew than a partition remembers."""
RETRIED = (
    "The shipped producer sends the batch again with its sequence, so that it is found, and seldom gives up in between."
)

PRODUCERS = (
    Mutant(
        "duplicates-appended",
        "H48",
        WINDOWS,
        "        return _find_duplicate(producer, base_sequence, record_count)\n",
        "        return None\n",
        "A retry of a batch that was written is written again.",
        Simulation(60),
    ),
    Mutant(
        "duplicate-answered-at-once",
        "H48",
        WINDOWS,
        "            return Duplicate(Offset(base_offset), Offset(base_offset + record_count))\n",
        "            return Duplicate(Offset(base_offset), Offset(0))\n",
        "A retry is acknowledged before the high watermark has passed the original.",
        Scenario("test_retries.py::test_a_retry_waits_as_the_original_does"),
    ),
    Mutant(
        "duplicate-at-a-wrong-offset",
        "H48",
        WINDOWS,
        "            base_offset = known.base_offset + skipped\n",
        "            base_offset = known.base_offset + skipped + 1\n",
        "A retry is answered with an offset that is not the record's.",
        Simulation(60),
    ),
    Mutant(
        "windows-not-rebuilt",
        "H48",
        REBUILD,
        "        if header.base_offset >= start:\n",
        "        if False:\n",
        "A restarted broker knows no sequences but those of its last snapshot.",
        Simulation(100),
    ),
    Mutant(
        "window-of-one",
        "H48",
        WINDOWS,
        "WINDOW_RANGES = 64\n",
        "WINDOW_RANGES = 1\n",
        "Of several batches in flight only the last one's offset is remembered.",
        Test(
            "tests/unit/broker/test_broker_producers.py::test_sequences_wrap",
            "A forgotten offset is answered as unknown, which is allowed.",
        ),
    ),
    Mutant(
        "unknown-producer-starts-anywhere",
        "H49",
        WINDOWS,
        "        if producer is None:\n            if base_sequence != 0:\n",
        "        if producer is None:\n            if False:\n",
        "A producer that is not known may begin with any sequence.",
        Simulation(60),
    ),
    Mutant(
        "new-producer-forgets-one-that-may-retry",
        "H49",
        WINDOWS,
        "        if silent_ms < self._retry_window_ms:\n",
        "        if False:\n",
        "A flood of producer ids makes the brokers store retries of others twice.",
        Simulation(40, changes=FLOOD),
    ),
    Mutant(
        "time-not-given-to-the-windows",
        "H49",
        f"{BROKER}/runtime/batch_checks.py",
        "header.base_sequence, header.record_count, now_ms\n",
        "header.base_sequence, header.record_count\n",
        "Where a partition has once remembered max_producers, no new producer is ever taken.",
        Test(
            "tests/security/test_poison_entering.py::test_flood_of_producer_ids_doubles_nothing",
            "The simulator has fewer producers than a partition remembers.",
        ),
    ),
    Mutant(
        "gaps-taken-for-duplicates",
        "H50",
        WINDOWS,
        "        if sequence_distance(base_sequence, producer.next_sequence) < record_count:\n",
        "        if False:\n",
        "A batch behind a gap is answered as if it had been written.",
        Simulation(60),
    ),
    Mutant(
        "gaps-appended",
        "H50",
        WINDOWS,
        "        if base_sequence == producer.next_sequence:\n            return None\n",
        "        if sequence_distance(producer.next_sequence, base_sequence) >= 0:\n            return None\n",
        "A batch behind a gap is written.",
        Simulation(60),
    ),
    Mutant(
        "old-producer-epoch-taken",
        "H54",
        WINDOWS,
        "        if producer_epoch < producer.epoch:\n",
        "        if False:\n",
        "A batch of an epoch that its producer has given up is written behind those of the new one.",
        Test(
            "tests/unit/broker/test_broker_producers.py::test_epochs_fence",
            "The simulator's producers begin an epoch only when nothing of the old one is under way.",
        ),
    ),
    Mutant(
        "new-producer-epoch-starts-anywhere",
        "H54",
        WINDOWS,
        "        if producer_epoch > producer.epoch:\n            if base_sequence != 0:\n",
        "        if producer_epoch > producer.epoch:\n            if False:\n",
        "A new producer epoch may begin with any sequence.",
        Test(
            "tests/unit/broker/test_broker_producers.py::test_epochs_fence",
            "The simulator's producers begin each epoch with sequence 0.",
        ),
    ),
    Mutant(
        "lost-leadership-called-definite",
        "H52",
        REPLICA,
        'f"{why} while the acknowledgement was awaited", outcome=Outcome.UNKNOWN,',
        'f"{why} while the acknowledgement was awaited", outcome=Outcome.NOT_APPLIED,',
        "A produce whose leader was deposed is said not to have happened, and the next leader commits it.",
        Test(
            "tests/unit/broker/test_broker_replica.py::test_losing_leadership_leaves_waiting_produces_unknown", RETRIED
        ),
    ),
    Mutant(
        "shrunk-after-append-called-definite",
        "H52",
        LEADERSHIP,
        '"the in-sync set shrank below min_insync_replicas")',
        '"the in-sync set shrank below min_insync_replicas", outcome=Outcome.NOT_APPLIED)',
        "A produce is said not to have happened though it was appended: it is committed once enough are in sync again.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py"
            "::test_a_set_that_shrinks_below_the_minimum_leaves_waits_unknown",
            RETRIED,
        ),
    ),
    Mutant(
        "producer-ids-by-chance-the-same",
        "H53",
        f"{COORDINATOR}/rpc/cluster_service.py",
        "producer_id=self._draw(OWN_PRODUCER_IDS)",
        "producer_id=self._draw(3)",
        "Two producers get one id: what the second one sends is taken for a repeat of what the first one sent.",
        Simulation(5),
    ),
)
