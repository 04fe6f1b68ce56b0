"""Rules of the partition's key: who is in sync, who is eligible, who is elected, how replicas move."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, COORDINATOR, LOG_PACKAGE, SERVER, Mutant, Scenario, Simulation, Test

STATE = f"{SERVER}/partition_state.py"
ELECTION = f"{COORDINATOR}/core/election.py"
CONTROL = f"{COORDINATOR}/core/control.py"
EMPTIED = "tests/unit/broker/test_broker_emptied_replica.py"

MEMBERS = (
    Mutant(
        "nobody-is-eligible",
        "H14",
        STATE,
        "    if len(in_sync) < minimum:\n",
        "    if False:\n",
        "Who leaves an in-sync set below its minimum is forgotten, though it has all that is committed.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "eligible-above-the-minimum",
        "H15",
        STATE,
        "    if len(in_sync) < minimum:\n",
        "    if True:\n",
        "Whoever leaves the in-sync set stays eligible while the high watermark moves on without it.",
        Simulation(60),
    ),
    Mutant(
        "minimum-of-before",
        "H15",
        STATE,
        "    if len(in_sync) < minimum:\n",
        "    if len(in_sync) < state.min_insync_replicas:\n",
        "Lowering min_insync_replicas leaves eligible leaders that the high watermark does not wait for.",
        Test(
            "tests/unit/coordinator/test_election.py::test_lowering_the_minimum_ends_eligibility",
            "The simulator's topics keep their min_insync_replicas.",
        ),
    ),
    Mutant(
        "doubtful-stay-eligible",
        "H33",
        STATE,
        "        barred = members | set(doubtful) |",
        "        barred = members |",
        "A replica whose log is corrupt stays eligible.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "epoch-of-the-same-broker-stays",
        "I5",
        STATE,
        "    leader_epoch = state.leader_epoch + (leader != state.leader)\n",
        "    leader_epoch = state.leader_epoch + (\n"
        "        (leader and leader.broker_id) != (state.leader and state.leader.broker_id)\n    )\n",
        "The same broker in a new session leads in the epoch of its old one.",
        Simulation(60),
    ),
    Mutant(
        "elected-outside-the-sets",
        "H20",
        ELECTION,
        "    if live_eligible:\n",
        "    if not live_eligible:\n"
        "        live_eligible = [Replica(each, live[each].broker_epoch) for each in state.replicas if each in live]\n"
        "    if live_eligible:\n",
        "Where nobody in sync or eligible lives, any replica is elected.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "any-return-counts",
        "H17",
        ELECTION,
        "        elif (session.clean and _is_continued(entry, session)) or (durable and",
        "        elif True or (durable and",
        "A broker that came back counts as the one that was in sync, whatever it lost.",
        Scenario("test_lost_disk.py::test_a_broker_with_an_empty_directory_is_nobody"),
    ),
    Mutant(
        "another-directory-counts",
        "H17",
        ELECTION,
        "    return 0 < session.storage_since <= entry.broker_epoch < session.broker_epoch\n",
        "    return entry.broker_epoch < session.broker_epoch\n",
        "A broker that came back with an empty directory counts as the one that was in sync.",
        Scenario("test_lost_disk.py::test_a_broker_with_an_empty_directory_is_nobody"),
    ),
    Mutant(
        "unclean-return-counts",
        "H22",
        ELECTION,
        "        elif (session.clean and _is_continued(entry, session)) or (durable and",
        "        elif _is_continued(entry, session) or (durable and",
        "With async durability a machine that lost its power counts as if it had lost nothing.",
        Scenario("test_power_loss.py::test_without_fsync_a_machine_that_lost_its_power_is_not_elected"),
    ),
    Mutant(
        "any-incarnation-counts",
        "H22",
        f"{BROKER}/runtime/registration.py",
        '            or (before.storage_incarnation == storage.incarnation != b"")\n',
        '            or storage.incarnation != b""\n',
        "A session goes back over a loss of power that came before a life without a session.",
        Scenario("test_power_loss.py::test_a_life_without_a_session_hides_no_loss"),
    ),
    Mutant(
        "torn-before-it-was-recovered",
        "H31",
        f"{LOG_PACKAGE}/boot_note.py",
        "        if not self.same_boot and self._boot_id:\n",
        "        if False:\n",
        "Nobody notes that the logs were recovered in this boot, so that whoever was killed comes back as nobody.",
        Test(
            "tests/unit/log/test_log_recovery.py::test_a_torn_tail_is_one_until_it_was_recovered",
            "Nothing is lost by it: members are.",
        ),
    ),
    Mutant(
        "dead-members-keep-their-place",
        "H16",
        CONTROL,
        "    present = [entry for entry in in_sync if is_session(entry, live)]\n",
        "    present = in_sync\n",
        "Under a leader that lives, members whose session is over stay in sync.",
        Test(
            "tests/unit/coordinator/test_control.py::test_the_dead_leave_while_the_leader_lives",
            "The leader takes them out as well, once they are late.",
        ),
    ),
    Mutant(
        "move-finished-before-it-is-copied",
        "H25",
        CONTROL,
        "    return stays.issuperset(state.adding) and len(stays)",
        "    return len(stays)",
        "The replicas that a move removes go before those that it adds are in sync.",
        Scenario("test_move.py::test_what_is_removed_goes_last"),
    ),
    Mutant(
        "move-finished-below-the-minimum",
        "H25",
        CONTROL,
        "    return stays.issuperset(state.adding) and len(stays) >= effective_min_insync_replicas("
        "min_insync_replicas, target)\n",
        "    return stays.issuperset(state.adding)\n",
        "A move ends though fewer than min_insync_replicas stay in sync.",
        Test(
            "tests/unit/coordinator/test_control.py::"
            "test_a_move_waits_rather_than_leave_fewer_than_the_minimum_in_sync",
            "Nothing is lost by it: the partition takes no acks=all for a while.",
        ),
    ),
    Mutant(
        "removed-replicas-stay-eligible",
        "H25",
        STATE,
        " | (set(state.replicas) - set(move.replicas))\n",
        "\n",
        "A replica that was moved away may be elected.",
        Test(
            "tests/unit/common/test_partition_state.py::test_who_is_moved_away_is_in_no_set",
            "A move waits until enough are in sync without those that go, so that nobody is eligible then.",
        ),
    ),
    Mutant(
        "successor-out-of-sync",
        "H24",
        STATE,
        "for entry in wanted if entry in in_sync and entry != leader)",
        "for entry in wanted if entry != leader)",
        "A leader is asked to hand over to a replica that has left the in-sync set.",
        Test(
            "tests/unit/coordinator/test_control.py::test_a_leader_is_asked_for_nobody_who_bears_more_than_it_does",
            "Every write checks the key's shape, so that no such key reaches the simulator's etcd.",
        ),
    ),
    Mutant(
        "stopping-broker-may-lead",
        "H18",
        ELECTION,
        "    return 2 if session.stopping else int(session.drained)\n",
        "    return int(session.drained)\n",
        "A broker that is about to end is elected though another one could be.",
        Scenario("test_stop.py::test_a_broker_that_stops_is_not_elected"),
    ),
    Mutant(
        "unclean-election-without-a-mark",
        "H21",
        ELECTION,
        "doubtful=state.replicas, unclean=True)\n",
        "doubtful=state.replicas)\n",
        "An election that may lose records looks like any other.",
        Scenario("test_unclean_election.py::test_who_was_ahead_cuts_what_was_committed"),
    ),
    Mutant(
        "committed-records-cut",
        "I18",
        f"{BROKER}/core/replica.py",
        "        return self.state is not None and last_batch_epoch < self.state.unclean_epoch\n",
        "        return True\n",
        "A follower cuts records that were committed whenever a leader says so.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_committed_records_are_not_cut",
            "The last line of defence: no leader says so as long as every other rule holds.",
        ),
    ),
    Mutant(
        "durable-before-it-is",
        "H30",
        f"{BROKER}/core/leadership.py",
        "        return on_others and replica.flushed_offset >= committed\n",
        "        return True\n",
        "The key says that members have everything on stable storage while some have it in their page cache.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py::test_the_key_says_durable_once_every_member_is",
            "Who lacks it has to lose its power as well, while the key stands so.",
        ),
    ),
    Mutant(
        "unanswered-promise-forgotten",
        "H30",
        f"{BROKER}/core/leadership.py",
        " or self.proposals.durable\n",
        "\n",
        "A leader counts what nobody has flushed while a write of its own may have promised that all of it is.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py::test_a_promise_that_may_be_in_the_key_binds",
            "Two settings have to change around one lost answer; seed 40547 of the simulator found it.",
        ),
    ),
    Mutant(
        "promise-taken-back-too-early",
        "H30",
        f"{BROKER}/core/leadership.py",
        "            return replica.flushes or len(state.in_sync) < state.min_insync_replicas\n",
        "            return replica.flushes\n",
        "The key stops promising while eligible leaders are away, so that they come back as nobody.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py::test_the_promise_stays_while_too_few_are_in_sync",
            "Nothing is lost by it: a leader is.",
        ),
    ),
    Mutant(
        "corrupt-leaves-only-where-it-is-named",
        "H17",
        STATE,
        "replaced=[broker_id]) if broker_id in state.replicas else None\n",
        "replaced=[broker_id]) if state.replica_of(broker_id) else None\n",
        "A corrupt replica that the key does not name writes nothing: a write on its way names the empty log after it.",
        Test(
            f"{EMPTIED}::test_a_join_written_before_the_log_was_emptied_does_not_name_the_empty_one",
            "In the scenario of test_corruption.py the corrupt log stays offline until the broker has registered.",
        ),
    ),
    Mutant(
        "progress-kept-behind-a-fence",
        "H17",
        f"{BROKER}/core/leadership.py",
        "                self.followers.forget(fence.broker_id)\n",
        "                pass\n",
        "A leader takes in a replica for what the log that it had before had acknowledged.",
        Test(
            f"{EMPTIED}::test_a_leader_that_tries_again_does_not_take_in_the_empty_log",
            "In the simulator a process whose log is corrupt comes back in a new session.",
        ),
    ),
    Mutant(
        "fetch-from-before-a-fence",
        "H17",
        f"{BROKER}/core/replica_fetch.py",
        "    if request.partition_epoch < state.fetches_count_from(follower.broker_id):\n",
        "    if False:\n",
        "A fetch of the log that was set aside counts for the empty one.",
        Test(
            f"{EMPTIED}::test_a_fetch_of_the_log_that_was_set_aside_is_refused",
            "In the simulator a process whose log is corrupt comes back in a new session.",
        ),
    ),
    Mutant(
        "added-replica-without-a-fence",
        "H17",
        STATE,
        "    for broker_id in (*replaced, *(set(move.replicas) - set(state.replicas))):\n",
        "    for broker_id in replaced:\n",
        "A replica that was moved away and back counts for what it had before.",
        Test(
            "tests/unit/broker/test_broker_core_replica_lives.py::"
            "test_a_removal_that_the_leader_missed_is_seen_by_the_adding",
            "The leader has to miss the write between the two moves.",
        ),
    ),
    Mutant(
        "corrupt-log-replaced-before-it-left",
        "H17",
        f"{BROKER}/runtime/replica_manager.py",
        "        if entry is None or left_revision is None or not isinstance(",
        "        left_revision = left_revision or 0\n        if entry is None or not isinstance(",
        "A corrupt log is replaced at any news of the key, while writes that name it may still land.",
        Test(
            f"{EMPTIED}::test_a_corrupt_log_kept_until_its_leaving_is_written",
            "In the simulator a process whose log is corrupt comes back in a new session.",
        ),
    ),
    Mutant(
        "rot-at-a-follower-ignored",
        "H33",
        f"{BROKER}/runtime/corruption.py",
        "        if self._replica.role in (Role.OFFLINE, Role.DELETED):\n"
        "            return\n"
        "        # The log start may",
        "        if self._replica.role is not Role.LEADING:\n            return\n        # The log start may",
        "A follower that readers tell of rotten bytes stays in sync with them until the scrub.",
        Test(
            f"{EMPTIED}::test_a_follower_that_a_reader_tells_of_rot_is_copied_anew",
            "In the simulator a host looks by itself.",
        ),
    ),
    Mutant(
        "unmade-log-missed",
        "H17",
        f"{BROKER}/runtime/replica_manager.py",
        "            if is_counted_on and was_begun and ",
        "            if is_counted_on and ",
        "A broker killed before it made the log of a new partition leaves the key for good.",
        Test(
            f"{EMPTIED}::test_a_member_that_never_made_its_log_stays_and_makes_it",
            "Plans with one replica and a topic that is made anew are drawn by some seeds only.",
        ),
    ),
    Mutant(
        "missing-log-counted-on",
        "H17",
        f"{BROKER}/runtime/replica_manager.py",
        "            if is_counted_on and was_begun and ",
        "            if False and is_counted_on and ",
        "A broker whose log of a partition was removed opens an empty one, and is in sync with it.",
        Test(
            f"{EMPTIED}::test_a_member_whose_log_is_gone_leaves_before_it_registers",
            "No single directory vanishes in the simulator.",
        ),
    ),
)
