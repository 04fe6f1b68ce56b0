"""Rules of what is deleted, and of how new etcd and a data directory are (H16, H25, H26, H42, H72, H81)."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, COORDINATOR, SERVER, Mutant, Scenario, Simulation, Test

DELETION = f"{BROKER}/runtime/log_deletion.py"
SEEN_METADATA = f"{BROKER}/runtime/seen_metadata.py"
VIEW = f"{SERVER}/metastore/view.py"
TRANSITION = f"{COORDINATOR}/core/group_transition.py"
OFFSETS = f"{COORDINATOR}/runtime/group_offsets.py"
ORPHANS = f"{COORDINATOR}/core/orphans.py"
REGISTRATION = f"{BROKER}/runtime/registration.py"
VOLUMES = {
    "faults": ("volume put back", "kill"),
    "fault_period_ms": 700,
    "brokers": 3,
    "replication_factor": 3,
    "min_insync_replicas": 2,
    "rates": (),
}
TESTS = "tests/unit/broker/test_broker_log_deletion.py"
NOT_SEEN = "What a process does that goes on there is undone when a new generation begins: the disks decide."
NO_OPERATOR = "The simulator has no operator who deletes unclaimed logs."
NOT_SIMULATED = "It takes a value that cannot be decoded, or a move that etcd forgets: no faults of the simulator."

DELETION_RULES = (
    Mutant(
        "operator-deletes-by-a-view",
        "H25",
        DELETION,
        "        found = (await self._metastore.get(view.keyspace.partition(*log_id))).key_value\n",
        "        found = view.source.get(view.keyspace.partition(*log_id))\n",
        "An operator's deletion takes a log that the partition's key has given to this broker meanwhile.",
        Test(f"{TESTS}::test_an_unclaimed_log_that_may_be_needed_stays", NO_OPERATOR),
    ),
    Mutant(
        "operator-deletes-during-a-reassignment",
        "H25",
        f"{BROKER}/core/unclaimed.py",
        "    if state.adding or state.removing:\n",
        "    if state.adding:\n",
        "An operator's deletion takes a log while its partition is being reassigned.",
        Test(f"{TESTS}::test_an_unclaimed_log_that_may_be_needed_stays", NO_OPERATOR),
    ),
    Mutant(
        "operator-deletes-what-etcd-has-forgotten",
        "H25",
        f"{BROKER}/core/unclaimed.py",
        "    if last_epoch > state.leader_epoch:\n",
        "    if False:\n",
        "An operator's deletion takes a log that is newer than a restored etcd.",
        Test(f"{TESTS}::test_an_unclaimed_log_that_may_be_needed_stays", NO_OPERATOR),
    ),
    Mutant(
        "absence-taken-for-deletion",
        "H26",
        DELETION,
        "            return log_id.topic_id in view.deleted and not is_reserved\n",
        "            return not is_reserved\n",
        "A broker deletes the logs of topics that a restored etcd lacks.",
        Test(
            f"{TESTS}::test_a_topic_that_a_running_broker_misses_is_kept",
            "A broker of the simulator notices that etcd was put back (H81) before it looks at its logs.",
        ),
    ),
    Mutant(
        "deletion-beside-what-cannot-be-decoded",
        "H26",
        DELETION,
        "        if view.undecodable:\n            return False\n",
        "",
        "A broker deletes a log while values of the metadata are left out of its view.",
        Test(f"{TESTS}::test_an_undecodable_topic_keeps_its_logs", NOT_SIMULATED),
    ),
    Mutant(
        "evidence-of-before-the-delay",
        "H26",
        DELETION,
        "            if not self.has_evidence(log_id):\n",
        "            if False:\n",
        "What allowed a deletion when it was scheduled is not looked at again.",
        Test(f"{TESTS}::test_evidence_is_looked_at_again_when_the_delay_is_over", NOT_SIMULATED),
    ),
    Mutant(
        "moved-away-by-a-key-of-the-past",
        "H25",
        DELETION,
        "        return claimed_at is not None and claimed_at < entry.mod_revision\n",
        "        return True\n",
        "A broker deletes a replica because of a key from before it came.",
        Test(f"{TESTS}::test_an_old_key_is_no_evidence", NOT_SIMULATED),
    ),
    Mutant(
        "restored-etcd-at-the-start",
        "H81",
        SEEN_METADATA,
        "        if revision < seen.revision:\n",
        "        if False:\n",
        "A broker that starts believes an etcd that is behind what its directory has seen.",
        Test(f"{TESTS}::test_an_etcd_of_the_past_is_refused", NOT_SEEN),
    ),
    Mutant(
        "key-of-the-past-at-the-start",
        "H81",
        SEEN_METADATA,
        "            if entry is not None and noted is not None and entry.mod_revision < noted:\n",
        "            if False:\n",
        "A broker that starts believes a key that is older than it has seen it.",
        Test(f"{TESTS}::test_a_key_of_before_a_replica_came_does_not_delete_it", NOT_SIMULATED),
    ),
    Mutant(
        "key-of-the-past-in-a-list",
        "H81",
        VIEW,
        "        if known is not None and found.mod_revision < known.mod_revision:\n",
        "        if False:\n",
        "A process that runs believes an etcd whose revision was raised when it was restored.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_a_key_of_the_past_is_refused",
            NOT_SEEN,
        ),
    ),
    Mutant(
        "watch-resumed-over-a-restored-etcd",
        "H81",
        VIEW,
        "        return read.key_value is not None\n",
        "        return True\n",
        "A watch that broke goes on over an etcd that lacks what the view has.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_a_broken_watch_is_resumed_only_where_the_newest_key_is",
            NOT_SEEN,
        ),
    ),
    Mutant(
        "watch-resumed-in-another-history",
        "H81",
        VIEW,
        "                    if PutEvent(overlap) not in item.events:\n",
        "                    if False:\n",
        "A watch that broke goes on in an etcd whose keys others have written anew since it was put back.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_a_broken_watch_overlaps_with_what_was_seen",
            "The simulated etcd has no history when it is put back: everything is read again.",
        ),
    ),
    Mutant(
        "group-drops-what-a-view-lacks",
        "H72",
        TRANSITION,
        "        if topic_id not in present and topic_id not in deleted\n",
        "        if False\n",
        "A coordinator whose view lacks a topic takes its partitions from who reads them.",
        Test(
            "tests/unit/coordinator/test_group_membership.py::test_a_topic_that_is_only_absent_keeps_its_owners",
            "The simulated etcd loses no key of a topic.",
        ),
    ),
    Mutant(
        "offsets-of-what-a-view-lacks",
        "H26",
        OFFSETS,
        "            compares += [Exists(keyspace.deleted_topic(topic_id)), ",
        "            compares += [",
        "Offsets of a topic that etcd lacks are removed.",
        Test(
            "tests/unit/coordinator/test_group_offsets.py::test_offsets_of_a_topic_that_is_only_absent_stay",
            "The simulated etcd loses no key of a topic.",
        ),
    ),
    Mutant(
        "nameless-topic-cleared",
        "H26",
        ORPHANS,
        "        elif entry.partitions == 0:\n",
        "        else:\n",
        "The controller clears away a topic that has lost its name, with all its partitions.",
        Test(
            "tests/unit/coordinator/test_controller.py::test_orphans_are_what_is_known_to_be_a_remainder",
            "The simulator's topics are made before the run.",
        ),
    ),
    Mutant(
        "session-of-the-past-at-the-start",
        "H81",
        SEEN_METADATA,
        "        if broker_epoch < noted_epoch:\n",
        "        if False:\n",
        "A broker that starts believes an etcd that lacks its last session.",
        Test(f"{TESTS}::test_an_etcd_that_lacks_the_last_session_is_refused", NOT_SEEN),
    ),
    Mutant(
        "overtaken-history-believed",
        "H81",
        REGISTRATION,
        "        if revision < self._storage.announced:\n",
        "        if False:\n",
        "A broker believes an etcd that was put back once others have raised its revision again.",
        Scenario("test_etcd_put_back.py::test_coordinators_start_first_and_raise_the_revision"),
    ),
    Mutant(
        "older-copy-counted",
        "H16",
        REGISTRATION,
        "        if known.storage_id == storage.storage_id and storage.version < known.version:\n",
        "        if False:\n",
        "A volume that was put back counts as the member that it was.",
        Simulation(60, durability="fsync", changes=VOLUMES),
    ),
    Mutant(
        "older-copy-keeps-its-identity",
        "H16",
        REGISTRATION,
        "            await storage.become_another()\n",
        "",
        "A volume that was put back is as new as etcd once its version has been raised.",
        Test(
            "tests/unit/broker/test_broker_registration.py::test_a_start_that_ends_half_way_changes_nothing",
            "It takes a process that ends between two calls of its registration.",
        ),
    ),
    Mutant(
        "version-in-etcd-first",
        "H16",
        REGISTRATION,
        "                await self._storage.note_session(version)\n",
        "",
        "etcd has a version that the directory does not have: it is taken for an older copy of itself.",
        Test(
            "tests/unit/broker/test_broker_registration.py::test_the_version_in_etcd_is_never_above_the_directory",
            "It takes a write to etcd that is answered and one to the disk that is not.",
        ),
    ),
)
