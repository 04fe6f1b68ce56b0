"""Rules of replica fetch: what a leader makes of a follower's log, and a follower of the leader's answer."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, SERVER, Mutant, Scenario, Simulation, Test

REPLICA = f"{BROKER}/core/replica.py"
FETCHES = f"{BROKER}/core/follower_fetches.py"
LEADERSHIP = f"{BROKER}/core/leadership.py"
FETCH = f"{BROKER}/core/replica_fetch.py"
REPLICA_FETCHER_TESTS = "tests/unit/broker/test_broker_replica_fetcher.py"

FOLLOWERS = (
    Mutant(
        "cut-to-high-watermark",
        "H1",
        FETCH,
        "            target = min(log.epoch_end(leader_epoch)[1], end_offset)\n",
        "            target = min(log.epoch_end(leader_epoch)[1], end_offset, replica.high_watermark)\n",
        "A follower that has diverged cuts its log to its high watermark, which lags behind what is committed.",
        Scenario(
            "test_kip_101.py::test_a_diverged_follower_keeps_what_is_committed_beyond_its_high_watermark",
        ),
    ),
    Mutant(
        "flushed-since-not-reported",
        "H30",
        f"{BROKER}/runtime/partition_follower.py",
        "        replace = durable_offset > self._reported_durable_offset\n",
        "        replace = False\n",
        "A follower that flushes because the topic asks for it now does not say so while its fetch waits.",
        Scenario("test_power_loss.py::test_followers_join_again_once_they_know_that_a_topic_asks_for_fsync"),
    ),
    Mutant(
        "cut-into-the-first-batch",
        "H8",
        FETCH,
        "            return TruncateTo(target) if _truncated_end(log, target) >= log.log_start_offset else",
        "            return TruncateTo(target) if target >= log.log_start_offset else",
        "A follower cuts into the batch that holds its log start: its log ends before it begins.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_a_cut_inside_the_batch_that_holds_the_log_start_is_a_start_from_nothing",
            "It takes an unclean election and a log start inside a batch: one seed in 15,000.",
        ),
    ),
    Mutant(
        "cut-to-the-leaders-end",
        "H2",
        FETCH,
        "            target = min(log.epoch_end(leader_epoch)[1], end_offset)\n",
        "            target = min(log.log_end_offset, end_offset)\n",
        "A follower cuts to where the leader's epoch ends, though its own ends earlier.",
        Scenario("test_kip_279.py::test_the_follower_has_less_of_the_epoch_that_both_know"),
    ),
    Mutant(
        "fetch-not-verified-by-end",
        "H3",
        FETCH,
        "        if epoch != request.last_epoch or end_offset < offset:\n",
        "        if epoch != request.last_epoch:\n",
        "A follower that has more of an epoch than the leader is taken for a copy.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_epochs_decide_where_logs_part",
            "The chain tells it, too, once the leader has appended: some seed in sixty saw the moment before.",
        ),
    ),
    Mutant(
        "fetch-not-verified-by-epoch",
        "H3",
        FETCH,
        "        if epoch != request.last_epoch or end_offset < offset:\n",
        "        if end_offset < offset:\n",
        "A follower whose last epoch the leader never had is taken for a copy.",
        Scenario("test_kip_279.py::test_the_follower_ends_within_the_epoch_that_both_know"),
        also=((FETCH, "    return None if is_copy else _one_batch_back(log, request)\n", "    return None\n"),),
        second_line="Where epochs are not compared, the chain of the last batch does not fit either.",
    ),
    Mutant(
        "fetch-not-verified-by-chain",
        "H32",
        FETCH,
        "    return None if is_copy else _one_batch_back(log, request)\n",
        "    return None\n",
        "A follower whose last batch is another one than the leader's is taken for a copy.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_the_same_epoch_and_another_chain_goes_one_batch_back",
            "Two batches at one offset of one epoch need a disk that lies: the epochs part first.",
        ),
    ),
    Mutant(
        "epochs-of-fetches-ignored",
        "H4",
        REPLICA,
        "self.leader_epoch):\n            raise self._wrong_epoch(known_epoch)\n        return leadership\n",
        "self.leader_epoch):\n            pass\n        return leadership\n",
        "A leader answers whoever asks, whatever epoch it knows.",
        Scenario("test_late_requests.py::test_a_fetch_of_an_old_epoch_says_nothing_of_the_new_one"),
    ),
    Mutant(
        "foreign-follower-answered",
        "H4",
        FETCH,
        "    if follower.broker_id not in state.replicas or",
        "    if state is None or",
        "A broker that holds no replica may copy the partition.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_what_the_leader_refuses",
            "Nobody in the simulator asks for what it does not hold.",
        ),
    ),
    Mutant(
        "fetch-of-a-past-session",
        "H17",
        FETCH,
        "    if follower.broker_epoch < leadership.followers.last_session(follower.broker_id):\n",
        "    if follower.broker_epoch < -1:\n",
        "A fetch that a broker sent in a session before replaces what it said in this one.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_what_the_leader_refuses",
            "What a session that is over acknowledges counts for nobody: progress is kept by session.",
        ),
    ),
    Mutant(
        "late-answer-used",
        "H6",
        FETCHES,
        " or token != self._awaited or leader_epoch",
        " or leader_epoch",
        "An answer to an earlier fetch is used.",
        Scenario("test_late_fetch_reply.py::test_an_answer_of_a_stream_that_is_gone_is_not_used"),
    ),
    Mutant(
        "answer-used-twice",
        "H6",
        FETCHES,
        "            return False\n        self._awaited = None\n        return True",
        "            return False\n        return True",
        "An answer that comes twice is used twice.",
        Scenario("test_late_fetch_reply.py::test_an_answer_is_used_once"),
    ),
    Mutant(
        "decision-on-a-fetch-ahead-used",
        "H6",
        FETCH,
        "    if ahead_offset and (answer.decision is not None or log.log_end_offset != ahead_offset):\n",
        "    if ahead_offset and log.log_end_offset != ahead_offset:\n",
        "A decision on the log as it was before the batches that have been written since cuts those.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_a_decision_on_a_fetch_ahead_is_not_used",
            "The leader found the log a copy one fetch before: only retention or corruption lets it send more.",
        ),
    ),
    Mutant(
        "answer-ahead-used-anywhere",
        "H6",
        FETCH,
        "    if ahead_offset and (answer.decision is not None or log.log_end_offset != ahead_offset):\n",
        "    if ahead_offset and answer.decision is not None:\n",
        "Good batches that follow others which were not written are taken for corruption.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_an_answer_ahead_does_not_fit_where_the_one_before_was_not_written",
            "A write that fails ends the fetch ahead as well, so its answer is late; this is for a leader that errs.",
        ),
    ),
    Mutant(
        "fetch-not-forgotten-at-a-new-epoch",
        "H6",
        FETCHES,
        "        self._leader_epoch = leader_epoch\n        self._awaited = None\n",
        "        self._leader_epoch = leader_epoch\n",
        "A follower still awaits the old leader's answer once it follows a new one, and fetches no more.",
        Simulation(60),
    ),
    Mutant(
        "answer-of-an-old-leader-used",
        "H6",
        FETCHES,
        " or leader_epoch != self._leader_epoch:\n            return False",
        ":\n            return False",
        "An answer of the leader of an old epoch is used.",
        Scenario("test_late_fetch_reply.py::test_an_answer_of_an_old_leader_is_not_used"),
        also=(
            (
                FETCHES,
                "        self._leader_epoch = leader_epoch\n        self._awaited = None\n",
                "        self._leader_epoch = leader_epoch\n",
            ),
        ),
        second_line="At a new epoch the awaited token is forgotten, so that no answer of an old one fits.",
    ),
    Mutant(
        "restart-keeps-high-watermark",
        "H8",
        REPLICA,
        " = self.flushed_offset = self.high_watermark = event.offset\n",
        " = self.flushed_offset = event.offset\n",
        "A log that starts over keeps the high watermark that it had.",
        Scenario("test_log_start.py::test_a_follower_below_the_log_start_starts_over"),
    ),
    Mutant(
        "leaders-high-watermark-taken-whole",
        "I8",
        REPLICA,
        "        high_watermark = min(Offset(event.high_watermark), self.log_end_offset)\n",
        "        high_watermark = Offset(event.high_watermark)\n",
        "A follower takes a high watermark that its log does not reach.",
        Simulation(60),
    ),
    Mutant(
        "followers-high-watermark-falls",
        "I8",
        REPLICA,
        "        if self.role is not Role.FOLLOWING or high_watermark <= self.high_watermark:\n",
        "        if self.role is not Role.FOLLOWING or high_watermark == self.high_watermark:\n",
        "A follower takes back what it has shown to readers, at the word of a new leader that knows less.",
        Scenario("test_kafka_7128.py::test_a_follower_keeps_the_high_watermark_that_it_has_shown"),
    ),
    Mutant(
        "replicated-sequences-forgotten",
        "H48",
        REPLICA,
        "            self.producers.record_batch(header)\n",
        "",
        "A follower that becomes leader knows no sequences of the batches that it copied.",
        Test(
            "tests/unit/broker/test_broker_core_histories.py::test_sequences_survive_a_failover",
            "The shipped producer begins a new epoch where its leader does not know it.",
        ),
    ),
    Mutant(
        "reader-judged-by-a-late-follower",
        "H29",
        FETCH,
        "    if replica.role is Role.FOLLOWING and offset > replica.high_watermark:\n",
        "    if False:\n",
        "A follower that is behind tells a reader that its records were replaced.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::test_readers_ahead_of_the_replica_ask_again",
            "The simulator's readers ask a follower seldom when it is behind: sixty seeds saw nothing.",
        ),
    ),
    Mutant(
        "own-cancellation-swallowed",
        "H40",
        f"{BROKER}/runtime/uninterrupted.py",
        "    if cancelled is not None:\n        raise cancelled\n",
        "",
        "A fetcher that is ended while it waits for its own writer's end takes the one for the other, and never ends.",
        Test(
            f"{REPLICA_FETCHER_TESTS}::test_a_fetcher_that_is_cancelled_while_its_stream_ends_ends",
            "The simulator has no tasks.",
        ),
    ),
    Mutant(
        "failure-of-an-ended-task-dropped",
        "I8",
        f"{BROKER}/runtime/uninterrupted.py",
        "    if failures:\n        raise failures[0]\n",
        "",
        "An assertion that fails in a task which is being ended is seen by nobody.",
        Test(
            f"{REPLICA_FETCHER_TESTS}::test_what_an_ended_task_failed_with_is_raised",
            "The simulator has no tasks.",
        ),
    ),
    Mutant(
        "fetch-due-during-a-cut-forgotten",
        "H3",
        f"{BROKER}/runtime/partition_follower.py",
        "            self._fetches_after = True\n",
        "",
        "A replica that cuts its log while its stream breaks, or its session is renewed, never fetches again.",
        Test(
            f"{REPLICA_FETCHER_TESTS}::test_a_replica_that_was_at_work_when_its_stream_broke_fetches_again",
            "The simulator cuts a log in one step.",
        ),
    ),
    Mutant(
        "failed-write-lost-with-its-stream",
        "H34",
        f"{BROKER}/runtime/partition_follower.py",
        "                if not isinstance(error, CorruptBatchError):\n"
        "                    self._partition.fail_unless_refused(error)\n",
        "",
        "A replica whose write failed while its stream broke follows on: the error went with who waited for it.",
        Test(
            f"{REPLICA_FETCHER_TESTS}::test_a_failed_write_takes_the_replica_offline_though_its_stream_broke",
            "The simulator writes a log in one step.",
        ),
    ),
    Mutant(
        "fetch-of-an-ended-stream",
        "H6",
        f"{BROKER}/runtime/follower_fetch_session.py",
        "        if self._closed:\n            return\n",
        "",
        "A fetch that came by a stream which is over takes back what the follower has acknowledged by the next one.",
        Test(
            f"{REPLICA_FETCHER_TESTS}::test_a_stream_that_has_ended_takes_no_fetch_in",
            "The simulator has its own streams.",
        ),
    ),
    Mutant(
        "keys-high-watermark-not-taken",
        "I18",
        REPLICA,
        "        if committed <= self.high_watermark:\n"
        "            return []\n"
        "        self.high_watermark = committed\n",
        "        return []\n",
        "A member that lost its checkpoint cuts what the key says was committed.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_a_restarted_member_cuts_nothing_that_the_key_calls_committed",
            "A leader of the simulator that asks for it has met another fault, which is found first.",
        ),
    ),
    Mutant(
        "keys-high-watermark-for-everybody",
        "H1",
        REPLICA,
        "        if state is None or not self._is_member(state):\n            return []\n",
        "        if state is None:\n            return []\n",
        "A replica that is no member takes what it has, and others have not, for committed.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_the_keys_high_watermark_is_not_for_those_who_are_no_members",
            "It takes a log that parted below what is committed, at a write of the key.",
        ),
    ),
    Mutant(
        "keys-high-watermark-kept-uncleanly",
        "H21",
        f"{SERVER}/partition_state.py",
        "        high_watermark=0 if unclean and leader != state.leader else state.high_watermark,\n",
        "        high_watermark=state.high_watermark,\n",
        "After an unclean election the replica that an administrator chose is taken for one that lost records.",
        Test(
            "tests/unit/broker/test_broker_core_replica_fetch.py::"
            "test_a_member_that_ends_below_what_the_key_calls_committed_lacks_it",
            "The simulator has no `Partition`, which looks.",
        ),
    ),
    Mutant(
        "leader-writes-no-high-watermark",
        "I18",
        LEADERSHIP,
        "self.proposals.send(note_committed(wanted, replica.high_watermark), replica.revision, sessions)\n",
        "self.proposals.send(wanted, replica.revision, sessions)\n",
        "The key never says what is committed.",
        Test(
            "tests/unit/broker/test_broker_core_in_sync.py::test_a_follower_joins_at_the_high_watermark",
            "A leader of the simulator that asks for a cut has met another fault, which is found first.",
        ),
    ),
    Mutant(
        "too-short-member-stays",
        "I3",
        f"{BROKER}/runtime/partition.py",
        " and self.replica.lacks_committed:\n",
        " and False:\n",
        "A member whose log ends below what the key says is committed follows, or leads.",
        Test(
            "tests/unit/broker/test_broker_emptied_replica.py::"
            "test_a_member_whose_log_is_too_short_leaves_and_is_copied_anew",
            "The simulator has no `Partition`, which looks.",
        ),
    ),
    Mutant(
        "idle-partition-not-checkpointed",
        "I18",
        f"{BROKER}/runtime/maintenance.py",
        "            await partition.checkpoint(force=True)\n",
        "            await partition.checkpoint(force=False)\n",
        "A partition that has fallen idle keeps the high watermark of the last interval on its disk.",
        Test(
            "tests/unit/broker/test_broker_maintenance.py::"
            "test_a_partition_that_falls_idle_has_its_high_watermark_on_the_disk",
            "The simulator checkpoints at its own ticks.",
        ),
    ),
    Mutant(
        "violation-answered-and-forgotten",
        "I6",
        f"{BROKER}/runtime/partition.py",
        "            self.context.crash(error)\n            raise\n",
        "            raise\n",
        "A core that is wrong fails one call, and the broker goes on with it.",
        Test(
            "tests/unit/broker/test_broker_violations.py::test_a_violation_that_one_call_meets_ends_the_broker",
            "In the simulator a violated invariant ends the run by itself.",
        ),
    ),
    Mutant(
        "failed-task-forgotten",
        "I7",
        f"{BROKER}/runtime/replica_fetcher.py",
        "        partition.context.watch(task)\n",
        "",
        "What a cut of a log meets is seen by nobody.",
        Test(
            "tests/unit/broker/test_broker_violations.py::test_a_violation_in_a_task_that_nobody_awaits_ends_the_broker",
            "The simulator has no tasks.",
        ),
    ),
)
