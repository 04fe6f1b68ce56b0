"""Rules of consumer groups: rounds, ownership, commits, places, topics; at coordinators and in clients."""

from __future__ import annotations

from tests.mutation.mutants import CLIENT, COORDINATOR, Mutant, Simulation

TRANSITION = f"{COORDINATOR}/core/group_transition.py"
ROUNDS = f"{COORDINATOR}/runtime/group_rounds.py"
OFFSETS = f"{COORDINATOR}/runtime/group_offsets.py"
SERVICE = f"{COORDINATOR}/rpc/group_service.py"
MEMBERSHIP = f"{CLIENT}/membership.py"
COMMITS = f"{CLIENT}/group_offsets.py"
STARTS = f"{CLIENT}/group_starts.py"

LATE = ("late requests", "slow messages")
"""Requests that hang at a coordinator and take effect when their callers have gone on."""

GROUPS = (
    Mutant(
        "round-compares-nothing",
        "H60",
        ROUNDS,
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
        Simulation(400, groups=True),
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
        Simulation(400, groups=True, changes={"rates": LATE, "rate": 0.08}),
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
        Simulation(200, groups=True),
    ),
    Mutant(
        "offsets-wanted-of-any-revision",
        "H65",
        STARTS,
        "            min_revision=max(holding.revision for holding in holdings),\n",
        "            min_revision=0,\n",
        "A new owner asks for an offset of any time.",
        Simulation(200, groups=True),
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
        "topics-gone-by-a-view",
        "H72",
        ROUNDS,
        "        compares += [VersionIs(keyspace.topic_by_id(topic_id), 0) for topic_id in result.dropped_topics]\n",
        "",
        "A coordinator that has not heard of a topic takes its partitions from who reads them.",
        Simulation(400, groups=True),
    ),
    Mutant(
        "unknown-by-a-view",
        "H73",
        SERVICE,
        "        if known_revision > self._groups.source.revision:\n",
        "        if False:\n",
        "A coordinator whose view is behind tells a member that it is none.",
        Simulation(200, groups=True),
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
        Simulation(200, groups=True),
    ),
)
