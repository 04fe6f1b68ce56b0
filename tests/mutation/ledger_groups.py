"""Rules of consumer groups: transactions, ownership, commits, places, topics; at coordinators and in clients."""

from __future__ import annotations

from tests.mutation.mutants import CLIENT, COORDINATOR, Mutant, Simulation, Test

TRANSITION = f"{COORDINATOR}/core/group_transition.py"
GROUP_TRANSACTIONS = f"{COORDINATOR}/runtime/group_transactions.py"
OFFSETS = f"{COORDINATOR}/runtime/group_offsets.py"
SERVICE = f"{COORDINATOR}/rpc/group_service.py"
MEMBERSHIP = f"{CLIENT}/group/membership.py"
COMMITS = f"{CLIENT}/group/offsets.py"
INITIAL_OFFSETS = f"{CLIENT}/group/initial_offsets.py"
MEMBER = f"{CLIENT}/group/member.py"
GROUP_MAINTENANCE = f"{COORDINATOR}/runtime/group_maintenance.py"
TIMES = f"{COORDINATOR}/runtime/group_times.py"
COORDINATOR_TESTS = "tests/unit/coordinator"
CLIENT_TESTS = "tests/unit/client"

LATE = ("late requests", "slow messages")
"""Requests that hang at a coordinator and take effect when their callers have gone on."""

GROUPS = (
    Mutant(
        "group-epochs-begin-again",
        "I28",
        f"{COORDINATOR}/core/group_state.py",
        "    first = (generation - 1) * EPOCHS_PER_GENERATION + create_revision\n",
        "    first = 0\n",
        "The fencing tokens of a group that was deleted and made anew start at 1 again.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "group-epochs-forget-the-generation",
        "I28",
        f"{COORDINATOR}/core/group_state.py",
        "    first = (generation - 1) * EPOCHS_PER_GENERATION + create_revision\n",
        "    first = create_revision\n",
        "After a restore from a backup a new group's tokens are below those that were given out before.",
        Test(
            "tests/unit/coordinator/test_group_membership.py::test_epochs_begin_above_those_of_earlier_generations",
            "The simulator restores no cluster.",
        ),
    ),
    Mutant(
        "round-compares-nothing",
        "H60",
        GROUP_TRANSACTIONS,
        "            ModRevisionIs(keyspace.group(group_id), entry.mod_revision),\n",
        "",
        "Two coordinators write the group's state over each other's.",
        Simulation(40, groups=True),
    ),
    Mutant(
        "grant-before-revoke",
        "H61",
        TRANSITION,
        "            if partition not in self._owners:\n",
        "            if partition not in self._owners or self._owners[partition].member_id != member_id:\n",
        "A partition goes to its next owner while the former one still reads it.",
        Simulation(20, groups=True),
    ),
    Mutant(
        "commit-compares-no-assignment",
        "H62",
        OFFSETS,
        "    return ModRevisionIs(view.keyspace.group_assignment(attempt.group_id, member_id), stored.mod_revision), ",
        '    return VersionIs(view.keyspace.group_assignment(attempt.group_id, b"?" * 16), 0), ',
        "A coordinator whose view is behind stores what a former owner commits.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "commits-without-numbers",
        "H64",
        COMMITS,
        "        self._number += 1\n",
        "        self._number += 0\n",
        "A commit that comes late takes the offset back.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "overtaken-commits-are-stored",
        "H64",
        OFFSETS,
        "stored.commit_number >= self.commit_number > 0:\n",
        "stored.commit_number == self.commit_number > 0:\n",
        "A coordinator stores a commit over a later one of the same member.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "commits-compare-no-offsets",
        "H64",
        OFFSETS,
        "            compares.append(ModRevisionIs(key, 0 if stored is None else stored.mod_revision))\n",
        "",
        "A commit is stored over a later one that the coordinator's view does not show yet.",
        Simulation(60, groups=True, changes={"rates": LATE, "rate": 0.08}),
    ),
    Mutant(
        "unknown-is-stored",
        "H64",
        OFFSETS,
        "                unanswered |= isinstance(error, MetastoreUnknownOutcomeError)\n",
        "                unanswered |= isinstance(error, MetastoreUnknownOutcomeError)\n"
        "                if unanswered:\n                    return refused\n",
        "A commit whose outcome is not known is answered as stored.",
        Simulation(200, groups=True),
    ),
    Mutant(
        "offsets-of-any-revision",
        "H65",
        OFFSETS,
        "        await self._source.wait_for(revision, max(0.0, left))\n",
        "        del left\n",
        "A new owner is told an offset of before its grant.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "offsets-wanted-of-any-revision",
        "H65",
        INITIAL_OFFSETS,
        "            min_revision=max(holding.revision for holding in holdings),\n",
        "            min_revision=0,\n",
        "A new owner asks for an offset of any time.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "two-of-one-place",
        "H69",
        TRANSITION,
        "        holder = _holder(self._members, said.instance_id)\n        if holder is not None and not",
        '        holder = _holder(self._members, "")\n        if holder is not None and not',
        "A second life of a static member joins beside the first one.",
        Simulation(20, groups=True),
    ),
    Mutant(
        "a-place-that-counts-twice",
        "H69",
        SERVICE,
        "            if replaced is None:\n",
        "            if True:\n",
        "A static member that restarts at the limit of members waits for the session of its former life.",
        Simulation(20, groups=True),
    ),
    Mutant(
        "unknown-by-a-view",
        "H73",
        SERVICE,
        "        if known_revision > self._groups.source.revision:\n",
        "        if False:\n",
        "A coordinator whose view is behind tells a member that it is none.",
        Simulation(100, groups=True),
    ),
    Mutant(
        "given-up-while-it-is-read",
        "H61",
        MEMBERSHIP,
        "        elif holding.stage is Stage.OWNED:\n            holding.stage = Stage.REVOKED\n",
        "        elif holding.stage is Stage.OWNED:\n            self._drop(key)\n",
        "A member says that it gave up what its application still reads.",
        Simulation(20, groups=True),
    ),
    Mutant(
        "taken-back-while-it-is-told",
        "H61",
        MEMBERSHIP,
        "            if holding.stage in (Stage.REVOKED, Stage.OWNED) and self._is_held(holding):\n",
        "            if holding.stage is Stage.REVOKED:\n",
        "A partition that is taken back while on_revoked runs is owned and never read again.",
        Simulation(100, groups=True),
    ),
    Mutant(
        "refused-on-a-view",
        "H63",
        OFFSETS,
        "                if refused and await self._is_behind(attempt):\n",
        "                if refused and attempt.member_epoch < 0:\n",
        "A coordinator that has not heard of a grant refuses its owner's commit.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_offsets.py::test_a_good_commit_is_not_refused_by_a_view_that_is_behind",
            "A client that is refused gives the partition back and is granted it again: the group comes to rest.",
        ),
    ),
    Mutant(
        "no-member-on-a-refused-commit",
        "H63",
        f"{CLIENT}/group/session.py",
        "                self.membership.request_heartbeat()\n                self.heartbeat_now()\n",
        "                self.lose_all()\n                return\n",
        "A member takes a coordinator that is behind at its word, and drops all that it reads.",
        Test(
            f"{CLIENT_TESTS}/consumer/test_group_consumer.py::test_a_commit_that_a_coordinator_with_an_old_view_refuses_is_sent_again",
            "Coordinators ask etcd before they refuse, so that in the simulator no commit is refused wrongly.",
        ),
    ),
    Mutant(
        "given-after-the-session",
        "H66",
        MEMBER,
        "        return self._config.stop_on_session_loss and boot_ms() >= self.membership.session_ends_ms()\n",
        "        return False\n",
        "A member that was paused goes on handing out records that another one may own.",
        Simulation(60, groups=True, changes={"stop_on_session_loss": True, "faults": ("pause", "isolate")}),
    ),
    Mutant(
        "session-from-the-answer",
        "H66",
        MEMBERSHIP,
        "        self.heard_ms = max(self.heard_ms, sent_ms)\n",
        "        self.heard_ms = max(self.heard_ms, sent_ms + self._told_interval_ms)\n",
        "A member counts its session from when it was answered, a whole wait after its lease was renewed.",
        Simulation(20, groups=True, changes={"stop_on_session_loss": True, "faults": ("pause", "isolate")}),
    ),
    Mutant(
        "slow-is-dead",
        "H67",
        f"{CLIENT}/group/session.py",
        "        return self._config.leave_on_processing_timeout\n",
        "        return True\n",
        "A member whose handler takes long leaves its group unasked.",
        Test(
            f"{CLIENT_TESTS}/consumer/test_group_consumer.py"
            "::test_a_stalled_application_is_told_of_and_leaves_only_where_it_is_asked_to",
            "To leave is allowed; that nobody wanted it is not in any key.",
        ),
    ),
    Mutant(
        "transactions-without-a-pause",
        "H68",
        GROUP_TRANSACTIONS,
        "                    if has_written:\n"
        "                        await asyncio.sleep(began + self._transaction_seconds - loop.time())\n",
        "",
        "Each member that joins is a write of the whole group.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_membership.py::test_members_that_join_at_once_share_rounds",
            "It is slow, and nothing else.",
        ),
    ),
    Mutant(
        "everything-moves",
        "H68",
        TRANSITION,
        "            **{partition: m for partition, m in self._target.items() if m in self._members},\n"
        "            **{partition: owner.member_id for partition, owner in self._owners.items()},\n",
        "",
        "The assignor is not told who has what: every join moves most partitions.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_membership.py::test_partitions_go_over_only_when_they_were_given_up",
            "Partitions that move without need are handed over as carefully as others.",
        ),
    ),
    Mutant(
        "a-place-with-old-epochs",
        "H69",
        TRANSITION,
        "                    self._owners[partition] = Ownership(said.member_id, self._assignment_epoch)\n",
        "                    self._owners[partition] = Ownership(said.member_id, owner.assignment_epoch)\n",
        "The second life of a static member has the fencing tokens of the first one.",
        Simulation(40, groups=True),
    ),
    Mutant(
        "expired-on-a-view",
        "H70",
        OFFSETS,
        "    return ModRevisionIs(view.keyspace.group(group_id), entry.mod_revision)\n",
        '    return VersionIs(view.keyspace.group(f"{group_id}-"), 0)\n',
        "Offsets of a group that members have joined meanwhile are removed.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_offsets.py::test_a_group_that_was_in_use_again_is_not_expired",
            "A member has to join in the milliseconds of a deletion that comes once a minute.",
        ),
    ),
    Mutant(
        "expired-by-a-wall-clock",
        "H70",
        GROUP_MAINTENANCE,
        "self._offsets_retention_ms or seen_ms < min(self._offsets_retention_ms, SEEN_EMPTY_MS):\n",
        "self._offsets_retention_ms:\n",
        "A clock that jumped ahead removes a group that has just lost its last member.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_offsets.py::test_a_wall_clock_that_is_wrong_removes_no_group",
            "Groups are looked at once a minute, and in the simulator they are seldom without members then.",
        ),
    ),
    Mutant(
        "put-out-by-wall-clocks",
        "I25",
        TIMES,
        "        now_ms, known = self._clock.monotonic_ms(), self._revoking.get(group_id, {})\n",
        "        now_ms = self._clock.now_ms()\n"
        "        known = {m.member_id: (m.revoking_since_ms, m.revoking_since_ms) for m in revoking}\n",
        "A member that was just asked to give up something is put out by a coordinator whose clock is ahead.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "commits-of-any-size",
        "H71",
        OFFSETS,
        "MAX_OFFSETS = 60\n",
        "MAX_OFFSETS = 6_000\n",
        "A commit of many partitions is one transaction, which etcd does not take.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_offsets.py"
            "::test_a_commit_of_many_partitions_goes_in_transactions_that_etcd_takes",
            "Groups of the simulator have at most 27 partitions.",
        ),
    ),
    Mutant(
        "transactions-of-any-size",
        "H71",
        TRANSITION,
        "MAX_OPERATIONS = 120\n",
        "MAX_OPERATIONS = 12_000\n",
        "Hundreds of members that join at once are one transaction, which etcd does not take.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_membership.py"
            "::test_three_hundred_members_join_in_transactions_that_etcd_takes",
            "Groups of the simulator have at most twelve members.",
        ),
    ),
    Mutant(
        "groups-of-any-size",
        "H71",
        TRANSITION,
        "    if size > MAX_STATE_BYTES:\n",
        "    if size < 0:\n",
        "A group grows until etcd does not take its key any more, and then stands still.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_membership.py::test_a_group_takes_no_more_than_fits_into_its_key",
            "No group of the simulator comes near a mebibyte.",
        ),
    ),
    Mutant(
        "session-by-its-lease-alone",
        "H73",
        SERVICE,
        "        return left_ms > 0 and live.key_value is not None and live.key_value.lease_id == lease_id\n",
        "        return left_ms > 0\n",
        "A keep-alive of a lease that is gone is believed: a member that was put out is told that it is one.",
        Test(
            f"{COORDINATOR_TESTS}/test_group_membership.py::test_a_lost_session_is_told_though_the_view_is_old",
            "The view shows a moment later that the member is gone, and the next heartbeat tells it.",
        ),
    ),
)
