"""Rules of the partition's key: the in-sync and eligible sets, elections, reassignment, and deletion."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Scenario, Simulation, Test, always, drop, never, replace

MEMBERSHIP = (
    Mutant(
        "epoch-of-the-same-broker-stays",
        "I5",
        "change",
        replace(
            "state.leader_epoch + (leader != state.leader)",
            "state.leader_epoch + ((leader and leader.broker_id) != (state.leader and state.leader.broker_id))",
        ),
        "The same broker in a new session leads in the epoch of its old one.",
        Simulation(60),
    ),
    Mutant(
        "in-sync-and-eligible",
        "I11",
        "change",
        replace("members | set(doubtful)", "set(doubtful)"),
        "A replica in sync is eligible, too, and stays so when it leaves with doubtful data.",
        Simulation(10),
    ),
    Mutant(
        "committed-records-truncated",
        "I18",
        "PartitionReplica.may_cut_committed",
        always("self.state is not None and last_batch_epoch < self.state.unclean_epoch"),
        "A follower truncates committed records whenever a leader requests it.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_committed_records_are_not_cut",
            "The last line of defence: no leader requests it while every other rule holds.",
        ),
    ),
    Mutant(
        "eligible-set-stays-empty",
        "H14",
        "change",
        never("len(in_sync) < minimum"),
        "A replica that leaves an in-sync set below its minimum is forgotten, though it has all committed records.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "eligible-above-the-minimum",
        "H15",
        "change",
        always("len(in_sync) < minimum"),
        "A replica that leaves the in-sync set stays eligible while the high watermark advances without it.",
        Simulation(60),
    ),
    Mutant(
        "progress-kept-behind-a-fence",
        "H17",
        "Leadership.see_key",
        drop("self.followers.forget(fence.broker_id)"),
        "A leader takes in a replica for what the log that it had before had acknowledged.",
        Test(
            "tests/unit/broker/test_broker_emptied_replica.py::test_a_leader_that_tries_again_does_not_take_in_the_empty_log",
            "In few seeds of the simulator a log is corrupt, and replaced in the same session.",
        ),
    ),
    Mutant(
        "elected-outside-the-sets",
        "H20",
        "election:elect",
        replace(
            "[entry for entry in eligible if is_session(entry, live)]",
            (
                "[entry for entry in eligible if is_session(entry, live)] or [\n"
                "    Replica(each, live[each].broker_epoch) for each in state.replicas if each in live\n"
                "]"
            ),
        ),
        "Where no in-sync or eligible replica is alive, any replica is elected.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "unclean-election-without-a-mark",
        "H21",
        "elect_uncleanly",
        replace("change(...)", "change(state, leader=leader, in_sync=[leader], doubtful=state.replicas)"),
        "An election that may lose records looks like any other.",
        Scenario("test_unclean_election.py::test_who_was_ahead_cuts_what_was_committed"),
    ),
    Mutant(
        "unclean-return-counts",
        "H22",
        "carry_over",
        always("session.clean"),
        "With async durability a machine that lost its power counts as if it had lost nothing.",
        Scenario("test_power_loss.py::test_without_fsync_a_machine_that_lost_its_power_is_not_elected"),
    ),
    Mutant(
        "move-finished-before-it-is-copied",
        "H25",
        "is_move_copied",
        always("stays.issuperset(state.adding)"),
        "The replicas that a move removes go before those that it adds are in sync.",
        Scenario("test_move.py::test_what_is_removed_goes_last"),
    ),
    Mutant(
        "moved-away-by-a-key-of-the-past",
        "H25",
        "LogDeletion.has_evidence",
        always("claimed_at is not None and claimed_at < entry.mod_revision"),
        "A broker deletes a replica because of a key from before it came.",
        Test(
            "tests/unit/broker/test_broker_log_deletion.py::test_an_old_key_is_no_evidence",
            "It takes a value that cannot be decoded, or a move that etcd forgets: no faults of the simulator.",
        ),
    ),
    Mutant(
        "absence-taken-for-deletion",
        "H26",
        "LogDeletion.has_evidence",
        always("log_id.topic_id in view.deleted"),
        "A broker deletes the logs of topics that a restored etcd lacks.",
        Test(
            "tests/unit/broker/test_broker_log_deletion.py::test_a_topic_that_a_running_broker_misses_is_kept",
            "A broker of the simulator notices that etcd was put back (H81) before it looks at its logs.",
        ),
    ),
    Mutant(
        "durable-before-it-is",
        "H30",
        "Leadership._says_durable",
        always("on_others and replica.flushed_offset >= committed"),
        "The key promises that members have everything on stable storage while some have it in their page cache.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py::test_the_key_says_durable_once_every_member_is",
            "The replica that lacks it has to lose its power as well, while the key still promises it.",
        ),
    ),
    Mutant(
        "doubtful-stay-eligible",
        "H33",
        "change",
        replace("set(doubtful)", "set()"),
        "A replica whose log is corrupt stays eligible.",
        Scenario("test_last_replica_standing.py::test_who_left_an_in_sync_set_below_its_minimum_may_lead"),
    ),
    Mutant(
        "corrupt-log-kept",
        "H33",
        "ReplicaManager._reconcile",
        drop("self._note_left(partition)"),
        "A corrupt replica that has left its key stays as it is: its log is not copied anew.",
        Simulation(
            50,
            durability="fsync",
            changes={
                "faults": ("corruption", "scrub"),
                "durable": True,
                "replication_factor": 3,
                "min_insync_replicas": 2,
            },
        ),
    ),
)
