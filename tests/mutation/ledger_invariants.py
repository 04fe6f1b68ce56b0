"""Invariants, and hazards that no other part of the ledger has: each taken out where its line stands."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, CLIENT, COORDINATOR, LOG_PACKAGE, SERVER, Mutant, Scenario, Simulation, Test

CORE = f"{BROKER}/core"
TRANSITION = f"{COORDINATOR}/core/group_transition.py"
ETCD = f"{SERVER}/metastore/etcd.py"
ETCD_CALLS = "tests/unit/common/test_etcd_calls.py"
SIMULATED_ETCD = "The simulator has an etcd of its own, and no gRPC."
REGISTRATION = f"{BROKER}/runtime/registration.py"
REGISTRATION_TESTS = "tests/unit/broker/test_broker_registration.py"
SERVICE = f"{BROKER}/rpc/service.py"
FAILOVERS = {"faults": ("kill", "isolate", "pause", "move leader"), "fault_period_ms": 500}
DELETIONS = {"faults": ("delete records", "kill", "isolate", "pause"), "fault_period_ms": 400, "produce_period_ms": 20}

INVARIANT_RULES = (
    Mutant(
        "incomplete-leader-goes-on",
        "I2",
        f"{CORE}/replica.py",
        "        return self.log_end_offset < state.high_watermark and self._is_member(state)\n",
        "        is_short = self.log_end_offset < state.high_watermark and self._is_member(state)\n"
        "        return is_short and state.leader != self._me()\n",
        "A leader whose log ends below what its key says is committed leads with what is left.",
        Test(
            "tests/unit/broker/test_broker_emptied_replica.py::test_a_leader_whose_log_is_too_short_leads_no_more",
            "It stands behind all rules by which such a replica is no member.",
        ),
    ),
    Mutant(
        "who-leaves-counts-no-more",
        "I4",
        f"{CORE}/leadership.py",
        "        entries = (*self.state.in_sync, *self.proposals.members())\n",
        "        entries = self.proposals.members() or self.state.in_sync\n",
        "The high watermark moves without a member that the key still names: its shrink has just been sent.",
        Simulation(60),
    ),
    Mutant(
        "answered-an-offset-early",
        "I9",
        f"{CORE}/acknowledgements.py",
        "        while self._pending and self._pending[0][0] <= high_watermark:\n",
        "        while self._pending and self._pending[0][0] <= high_watermark + 1:\n",
        "An append is acknowledged when all but its last record is committed.",
        Simulation(10),
    ),
    Mutant(
        "in-sync-and-eligible",
        "I11",
        f"{SERVER}/partition_state.py",
        "        barred = members | set(doubtful) | (set(state.replicas) - set(move.replicas))\n",
        "        barred = set(doubtful) | (set(state.replicas) - set(move.replicas))\n",
        "Who is in sync is eligible, too, and stays so when it leaves with doubtful data.",
        Simulation(10),
    ),
    Mutant(
        "new-leaders-session-not-compared",
        "I12",
        f"{COORDINATOR}/core/control.py",
        "    if after.leader is not None and after.leader != before.leader:\n        named.add(after.leader)\n",
        "",
        "A broker is elected though its session may be over when the write lands.",
        Test(
            "tests/unit/coordinator/test_control.py::test_an_election_compares_the_session_of_who_is_to_lead",
            "The session has to end while the write is on its way: one seed in thirty.",
        ),
    ),
    Mutant(
        "controller-of-before-forgets-deletions",
        "I14",
        f"{COORDINATOR}/runtime/deleted_topics.py",
        "        compares = (*write.compares, CreateRevisionIs(keyspace.controller(), controller_epoch))\n",
        "        compares = tuple(write.compares)\n",
        "A controller that has been replaced removes the evidence of deletions.",
        Test(
            "tests/unit/coordinator/test_deleted_topics.py::test_who_is_no_controller_any_more_forgets_nothing",
            "A week has to pass.",
        ),
    ),
    Mutant(
        "flush-of-before-a-cut-counts",
        "I16",
        f"{BROKER}/runtime/partition.py",
        "        durable = min(offset, self.open_log.flushed_offset)\n",
        "        durable = offset\n",
        "What took the place of records that were cut counts as durable because those were.",
        Test(
            "tests/unit/broker/test_broker_slow_appends.py"
            "::test_a_flush_that_is_told_after_a_cut_counts_no_further_than_the_cut",
            "The cut and the append have to come between a flush's end and its report.",
        ),
    ),
    Mutant(
        "deletions-missed-by-a-list",
        "I19",
        f"{SERVER}/metastore/view.py",
        "        changed = [key for key in self._key_values if key not in fresh]\n",
        "        changed: list[str] = []\n",
        "A view that was read anew keeps the keys that were deleted meanwhile.",
        Simulation(60, changes={"faults": ("etcd compacts", "kill"), "fault_period_ms": 300}),
    ),
    Mutant(
        "sequence-not-counted-by-records",
        "I20",
        f"{BROKER}/core/producers.py",
        "        if base_sequence == producer.next_sequence:\n",
        "        if base_sequence >= producer.next_sequence:\n",
        "A batch is taken though those before it are missing.",
        Test(
            "tests/unit/broker/test_broker_producers.py::test_gaps_and_overlaps_are_refused",
            "The shipped producer never leaves one within an epoch.",
        ),
    ),
    Mutant(
        "several-in-flight-without-sequences",
        "I21",
        f"{CLIENT}/producer/inflight.py",
        "partition_queue.recovering or partition_queue.needs_epoch or not self._idempotent",
        "partition_queue.recovering or partition_queue.needs_epoch",
        "A producer without an id sends on while a batch before may fail and be sent again.",
        Test(
            "tests/unit/client/producer/test_inflight.py::test_without_a_producer_id_one_request_flies",
            "The simulator's producers without an id are those with acks=0, which send nothing again.",
        ),
    ),
    Mutant(
        "unknown-outcome-called-failed",
        "I22",
        f"{CLIENT}/producer/inflight.py",
        "        if batch.outcome_unknown and error.outcome == Outcome.NOT_APPLIED:\n",
        "        if False:\n",
        "A batch that an earlier try may have written is reported as certainly not written.",
        Simulation(100, changes={**FAILOVERS, "gives_up": True}),
    ),
    Mutant(
        "granted-at-the-epoch-of-before",
        "I24",
        TRANSITION,
        "                self._owners[partition] = Ownership(member_id, self._assignment_epoch)\n",
        "                self._owners[partition] = Ownership(member_id, self._before.assignment_epoch or 1)\n",
        "A partition has the same fencing token under two owners.",
        Simulation(20, groups=True),
    ),
    Mutant(
        "commit-of-a-former-tenure-stored",
        "I26",
        f"{COORDINATOR}/runtime/group_offsets.py",
        "        elif member_epoch < epoch:\n",
        "        elif False:\n",
        "What a member committed before it lost a partition and got it back takes a later owner's offset back.",
        Test(
            "tests/unit/coordinator/test_group_offsets.py"
            "::test_the_epoch_of_a_commit_lies_between_the_grant_and_the_present",
            "The shipped member gives a partition up when its commits are stored.",
        ),
    ),
    Mutant(
        "own-commit-of-a-former-term-believed",
        "I27",
        f"{CLIENT}/group/initial_offsets.py",
        "        if own is not None and epoch == holding.assignment_epoch:\n",
        "        if own is not None:\n",
        "A member that is given a partition again begins where it stopped, before what others have committed since.",
        Simulation(60, groups=True),
    ),
    Mutant(
        "first-records-of-a-grown-topic-skipped",
        "I29",
        f"{CLIENT}/group/initial_offsets.py",
        '        found += yield from self._reset(added, "earliest" if at == "latest" else at)\n',
        "        found += yield from self._reset(added, at)\n",
        "Of a partition that was added under a group that starts at the end the first records reach nobody.",
        Test(
            "tests/unit/client/consumer/test_group_consumer.py"
            "::test_an_added_partition_is_read_from_its_beginning_whatever_the_reset",
            "The simulator's groups start at the beginning of everything.",
        ),
    ),
    Mutant(
        "high-watermark-with-a-decision",
        "H7",
        f"{CORE}/replica_fetch.py",
        "    if not replica.fetches.take_answer(answer.token, answer.leader_epoch):\n        return None\n",
        "    if not replica.fetches.take_answer(answer.token, answer.leader_epoch):\n        return None\n"
        "    if answer.decision is not None:\n"
        "        return AppendBatches(b'', log.log_end_offset, answer.log_start_offset, False)\n",
        "A follower takes an answer about divergence for the news that all it has is committed.",
        Scenario("test_kip_279.py::test_the_follower_has_more_than_the_leader"),
    ),
    Mutant(
        "lease-in-doubt-serves-on",
        "H28",
        SERVICE,
        " and (session is None or not session.keeper.alive_now()):\n",
        " and session is None:\n",
        "A broker that may be deposed answers reads of any age although it is told to fence itself.",
        Test(
            "tests/unit/broker/test_broker_start.py"
            "::test_a_broker_that_may_be_deposed_answers_nobody_where_it_is_asked_to",
            "In the simulator an answer of a deposed leader is no broken promise.",
        ),
    ),
    Mutant(
        "written-in-its-place",
        "H41",
        f"{LOG_PACKAGE}/checkpoint.py",
        '    temporary = f"{directory}/{name}.tmp"\n',
        '    temporary = f"{directory}/{name}"\n',
        "A small file is written where the old one stood: power that is lost on the way leaves neither.",
        Test(
            "tests/unit/log/test_log_replace_file.py::test_power_that_is_lost_on_the_way_leaves_one_of_the_two",
            "It takes power lost within a few writes of a small file.",
        ),
    ),
    Mutant(
        "reads-wait-on-the-loop",
        "H46",
        f"{LOG_PACKAGE}/slices.py",
        "            data = self._files.filesystem.pread_nowait(self.fileno(), self.size_bytes, self.position)\n",
        "            data = self._files.filesystem.pread(self.fileno(), self.size_bytes, self.position)\n",
        "A read that the page cache lacks holds the event loop until the disk answers.",
        Test(
            "tests/unit/log/test_partition_log.py::test_read_nowait_gives_up_where_the_disk_must_be_waited_for",
            "Calls to the simulator's disk take no time on the loop.",
        ),
    ),
    Mutant(
        "session-of-a-lost-lease-is-nobody",
        "H74",
        REGISTRATION,
        "            before.boot_id == self._live.boot_id\n",
        "            False\n",
        "A broker that lives and lost its lease counts as one that lost what it had not flushed.",
        Test(
            f"{REGISTRATION_TESTS}::test_after_a_lost_lease_a_later_session_resumes_continuously",
            "The machine has not been booted either, which the other two lines see.",
        ),
    ),
    Mutant(
        "adopted-on-another-lease",
        "H75",
        REGISTRATION,
        "        if live.boot_id == self._live.boot_id and present.lease_id == lease_id:\n",
        "        if live.boot_id == self._live.boot_id:\n",
        "A broker takes a key that hangs on an earlier lease, which nobody renews, for its registration.",
        Test(
            f"{REGISTRATION_TESTS}::test_a_lost_answer_leaves_one_session",
            "It registers anew when that lease ends: the simulator sees a session more.",
        ),
    ),
    Mutant(
        "no-answer-called-not-applied",
        "H78",
        ETCD,
        "            raise MetastoreUnknownOutcomeError(\n",
        "            raise MetastoreUnavailableError(\n",
        "A write that etcd did not answer is said not to have happened.",
        Test(f"{ETCD_CALLS}::test_a_write_without_a_good_answer_is_unknown_and_not_sent_again", SIMULATED_ETCD),
    ),
    Mutant(
        "writes-sent-again",
        "H79",
        ETCD,
        "            self._leave(endpoint)\n            raise MetastoreUnknownOutcomeError(\n",
        "            self._leave(endpoint)\n            return await send(self._endpoint(self._current))\n"
        "            raise MetastoreUnknownOutcomeError(\n",
        "A write without an answer is sent to another member by the client itself, however late the first one lands.",
        Test(f"{ETCD_CALLS}::test_a_write_without_a_good_answer_is_unknown_and_not_sent_again", SIMULATED_ETCD),
    ),
    Mutant(
        "reads-of-one-member",
        "H82",
        ETCD,
        "        request = stubs.rpc_pb2.RangeRequest(key=key.encode())\n",
        "        request = stubs.rpc_pb2.RangeRequest(key=key.encode(), serializable=True)\n",
        "A member that is cut off answers with what it knew.",
        Test(f"{ETCD_CALLS}::test_reads_are_linearizable", SIMULATED_ETCD),
    ),
    Mutant(
        "etcd-filled-by-public-calls",
        "H83",
        f"{COORDINATOR}/runtime/metadata_limits.py",
        "        return bool(self._quota_bytes) and self._used_bytes >= RESERVE_FROM * self._quota_bytes\n",
        "        return False\n",
        "Clients add groups and topics until etcd takes no write, an election's included.",
        Test(
            "tests/unit/coordinator/test_metadata_limits.py::test_reserve_of_etcd_begins_at_70_percent_of_what_is_used",
            "The simulator's etcd has no quota; it refuses for lack of room at random.",
        ),
    ),
    Mutant(
        "pages-of-several-revisions",
        "H85",
        ETCD,
        "            revision = revision or answer.header.revision\n",
        "            revision = 0\n",
        "A long list is put together from several moments.",
        Test(f"{ETCD_CALLS}::test_a_list_is_read_in_pages_of_one_revision", SIMULATED_ETCD),
    ),
    Mutant(
        "expired-certificate-taken",
        "H87",
        f"{SERVER}/certificate_files.py",
        "    if expires_at <= datetime.now(UTC):\n",
        "    if False:\n",
        "A process starts with, or changes to, a certificate that every peer refuses.",
        Test(
            "tests/unit/common/test_certificate_files.py::test_what_handshakes_would_fail_at_is_refused_with_a_reason",
            "The simulator has no TLS.",
        ),
    ),
    Mutant(
        "log-start-told-as-asked-for",
        "I18",
        f"{BROKER}/rpc/fetch.py",
        "        result.log_start_offset = replica.known_log_start\n",
        "        result.log_start_offset = min(replica.known_log_start, each.request.offset - 1)\n",
        "A Fetch names as the log start what lies before its caller, so that it falls from one caller to the next.",
        Simulation(20, changes=DELETIONS),
    ),
    Mutant(
        "end-told-by-a-new-leader",
        "H10",
        SERVICE,
        "                leadership.check_latest()\n                result.offset = replica.high_watermark\n",
        "                result.offset = replica.high_watermark\n",
        "A leader that has just started tells clients that the log ends before what they have read.",
        Simulation(100, changes=FAILOVERS),
    ),
)
