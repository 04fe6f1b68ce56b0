"""Rules that faults of their own bring about: what a machine refuses, sessions made anew, clocks, etcd put back."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, LOG_PACKAGE, SERVER, Mutant, Scenario, Simulation

REFUSALS = {"faults": ("disk refuses",), "fault_period_ms": 400}
CLOCKS = {"faults": ("clock wrong at a start",), "retention_ms": 2_000, "fault_period_ms": 1_500}

FAULT_RULES = (
    Mutant(
        "interrupted-call-taken-for-a-broken-disk",
        "H35",
        f"{LOG_PACKAGE}/errors.py",
        "errno.EAGAIN, errno.EINTR))",
        "errno.EAGAIN))",
        "A replica goes offline for a call that a signal interrupted.",
        Simulation(50, changes=REFUSALS),
    ),
    Mutant(
        "refused-flush-taken-for-a-failed-one",
        "H35",
        f"{BROKER}/runtime/flusher.py",
        "        elif isinstance(error, REFUSALS):\n",
        "        elif False:\n",
        "A replica goes offline for an fsync that the machine had no room or memory for.",
        Simulation(50, changes=REFUSALS),
    ),
    Mutant(
        "refused-answer-not-asked-for-again",
        "H35",
        f"{BROKER}/runtime/replica_fetcher.py",
        "            pause = REFUSED_STORAGE_SECONDS\n",
        "            return\n",
        "A follower whose disk refused an answer never fetches again.",
        Simulation(50, changes=REFUSALS),
    ),
    Mutant(
        "record-stamped-by-a-clock-in-doubt",
        "H43",
        f"{BROKER}/runtime/partition_context.py",
        "        return self.clock.now_ms() if self.stamp_clock is None else self.stamp_clock()\n",
        "        return self.clock.now_ms()\n",
        "A leader whose clock is wrong stamps its time, by which its records are deleted once the clock is right.",
        Simulation(100, changes={**CLOCKS, "faults": ("clock jump",)}),
    ),
    Mutant(
        "unnamed-corrupt-replica-writes-nothing",
        "H33",
        f"{SERVER}/partition_state.py",
        "replaced=[broker_id]) if broker_id in state.replicas else None\n",
        "replaced=[broker_id]) if any(\n"
        "            each.broker_id == broker_id for each in (*state.in_sync, *state.eligible_leaders)\n"
        "        ) else None\n",
        "A corrupt replica that its key does not name begins anew while a write that names it is on its way.",
        Scenario("test_corruption.py::test_a_join_on_its_way_does_not_name_the_empty_log_of_a_session_that_goes_on"),
    ),
    Mutant(
        "high-watermark-not-noted",
        "I18",
        f"{BROKER}/runtime/partition.py",
        "            partition_log.durability.note_high_watermark(self.replica.high_watermark)\n",
        "            pass\n",
        "A replica that is killed amid records knows of none of the last second that it was committed.",
        Scenario("test_guard_of_cuts.py::test_a_follower_that_is_killed_amid_records_knows_what_was_committed"),
    ),
    Mutant(
        "copy-from-before-a-stop-counted",
        "H16",
        f"{BROKER}/app.py",
        "        await self._outdate_copies(membership.registration)\n",
        "",
        "A volume that was copied just before a stop in order, and put back, is the member that stopped.",
        Scenario("test_lost_disk.py::test_a_copy_from_just_before_an_orderly_stop_is_nobody"),
    ),
)
