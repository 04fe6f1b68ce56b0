"""Rules of etcd and the registrations in it: what a view believes, what a session promises."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, SERVER, Mutant, Scenario, Simulation, Test

VIEW = f"{SERVER}/metastore/view.py"
REGISTRATION = f"{BROKER}/runtime/registration.py"
ISR_UPDATER = f"{BROKER}/runtime/isr_updater.py"
LEASE = f"{SERVER}/metastore/lease.py"
NO_THREADS = "The simulator renews leases itself: the keeper is a thread with a channel of its own."

METADATA = (
    Mutant(
        "restored-etcd-believed",
        "H81",
        VIEW,
        "        if revision < self._revision:\n",
        "        if False:\n",
        "A list of the past replaces what is known.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_a_list_of_the_past_with_a_key_that_was_deleted_is_refused",
            "Who acts on an old view mostly loses the compare: about one seed in a thousand breaks an invariant.",
        ),
    ),
    Mutant(
        "old-events-applied",
        "H80",
        VIEW,
        "        if not item.events or item.revision <= self._revision:\n",
        "        if not item.events:\n",
        "An event that comes twice, or late, undoes a newer one.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_an_event_that_the_list_has_is_not_applied_again",
            "What the simulator's etcd doubles, it doubles at once: the second time changes nothing.",
        ),
    ),
    Mutant(
        "registered-beside-another",
        "I13",
        REGISTRATION,
        "                    VersionIs(live_key, 0),\n",
        "",
        "A broker registers though its id is registered already.",
        Simulation(60),
    ),
    Mutant(
        "storage-of-before-not-compared",
        "H42",
        REGISTRATION,
        "        if before.storage_id != storage.storage_id:\n",
        "        if False:\n",
        "A broker with a new directory says that it resumes what the old one had.",
        Scenario("test_lost_disk.py::test_a_broker_with_an_empty_directory_is_nobody"),
    ),
    Mutant(
        "proposal-over-any-version",
        "C1",
        ISR_UPDATER,
        "                    [ModRevisionIs(key, proposal.base_revision), *sessions],\n",
        "                    sessions,\n",
        "A leader's write replaces whatever stands in the key.",
        Simulation(120),
    ),
    Mutant(
        "no-answer-taken-for-a-failed-compare",
        "C2",
        ISR_UPDATER,
        "            partition.handle(ProposalUnanswered(proposal.number))\n",
        "            partition.handle(ProposalFailed(proposal.number, None, proposal.base_revision))\n",
        "The shell takes a write without an answer for one that failed.",
        Scenario("test_lost_answer.py::test_who_may_have_joined_counts"),
    ),
    Mutant(
        "stale-read-believed",
        "C4",
        ISR_UPDATER,
        "                    if (await self._metastore.txn(unchanged, success=[Get(key)])).succeeded:\n",
        "                    if True:\n",
        "A broker whose log failed believes a read of the past by which nobody counts on it.",
        Test(
            "tests/unit/broker/test_broker_isr_updater.py::test_a_failed_replica_leaves_though_it_reads_that_it_has_left",
            "A corrupt replica writes the key in any case; a log that failed otherwise has all its records.",
        ),
    ),
    Mutant(
        "refused-leaving-believed",
        "C4",
        ISR_UPDATER,
        "                if result.succeeded:\n                    return result.revision\n",
        "                return result.revision\n",
        "A broker with a corrupt log takes a write that was computed from a read of the past for done.",
        Scenario("test_stale_read.py::test_a_corrupt_replica_leaves_though_it_reads_that_it_has_left"),
    ),
    Mutant(
        "corrupt-last-member-stays",
        "H33",
        f"{SERVER}/partition_state.py",
        "    if corrupt:\n        return leave(",
        "    if corrupt and any(entry.broker_id != broker_id for entry in state.in_sync):\n        return leave(",
        "The last member in sync stays named though its log is corrupt, and leads again with what is left.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "failed-last-member-leaves",
        "H34",
        f"{SERVER}/partition_state.py",
        " if named and others else None\n",
        " if named else None\n",
        "The last member in sync leaves after an I/O error, and nobody can ever be elected again.",
        Scenario("test_last_replica_standing.py::test_an_input_output_error_leaves_the_last_one_named"),
    ),
    Mutant(
        "ended-lease-trusted",
        "H76",
        LEASE,
        "        if ttl_ms <= 0:\n",
        "        if False:\n",
        "A broker whose lease etcd has ended goes on as if it lived.",
        Test("tests/unit/common/test_lease_keeper.py::test_a_time_to_live_of_zero_is_loss_and_final", NO_THREADS),
    ),
    Mutant(
        "deadline-from-the-answer",
        "H77",
        LEASE,
        "        self._deadline_ms = sent_ms + ttl_ms - self._margin_ms\n",
        "        self._deadline_ms = self._clock.boottime_ms() + ttl_ms - self._margin_ms\n",
        "The time that an answer took is counted as time that the lease has left.",
        Test("tests/unit/common/test_lease_keeper.py::test_the_deadline_counts_from_the_sending", NO_THREADS),
    ),
    Mutant(
        "silence-taken-for-loss",
        "H84",
        LEASE,
        "            self._note_silence()\n            return False\n",
        "            self._change(LeaseState.LOST)\n            return False\n",
        "A broker gives its session up because etcd does not answer.",
        Test("tests/unit/common/test_lease_keeper.py::test_silence_is_not_loss", NO_THREADS),
    ),
    Mutant(
        "hung-process-keeps-its-lease",
        "H89",
        LEASE,
        "        return self._beat_pending and",
        "        return False and",
        "The lease of a process whose event loop hangs is renewed for ever.",
        Test("tests/unit/common/test_lease_keeper.py::test_a_dead_event_loop_is_not_kept_alive", NO_THREADS),
    ),
)
