"""How replicas lost records elsewhere, played with three of ours: each history ends with nothing lost.

KIP-101, KIP-279, KAFKA-7128, KAFKA-13790, KIP-966, and the hazards of PROTOCOL section 3 that name a course of events.
"""

from __future__ import annotations

from headrace.wire.ids import Offset
from headrace_broker.core.messages import DurabilityChanged, ProposalUnanswered
from headrace_broker.core.replica_fetch import Diverged, FetchAnswer, TruncateTo
from headrace_broker.core.roles import Role
from headrace_server.partition_state import change, leave

from tests.fakes.memory_filesystem import Loss, MemoryFileSystem
from tests.unit.broker.three_replicas import LAG_MAX_MS, Batch, ThreeReplicas

A, B, C = 1, 2, 3


def both(**settings: object) -> ThreeReplicas:
    """A leads, B follows and is in sync; C is a replica and away."""
    partition = ThreeReplicas(**{"min_insync_replicas": 1, **settings})  # type: ignore[arg-type]
    for broker in (A, B):
        partition.register(broker)
    members = [partition.session_of(A), partition.session_of(B)]
    partition.write(change(partition.state, leader=members[0], in_sync=members, durable=partition.durable))
    partition.see_all()
    return partition


def settle(partition: ThreeReplicas, leader: int, *followers: int) -> list[Batch]:
    """All who are there copy what the leader has; what it then holds."""
    partition.see_all()
    partition[leader].flush()
    for _ in range(2):
        for follower in followers:
            partition.catch_up(follower, leader)
    partition.check()
    for follower in followers:
        assert partition[follower].batches() == partition[leader].batches()
    return partition[leader].batches()


def test_kip_101_a_follower_that_restarts_keeps_what_it_fetched() -> None:
    """KIP-101 scenario 1, H1: its high watermark is one fetch behind; cutting there and then leading lost m2."""
    partition = both()
    partition[A].produce()
    partition[A].flush()
    partition.catch_up(B, A)
    partition[A].produce(token=2)
    partition[A].flush()
    partition.fetch(B, A)
    partition[B].flush()
    partition.fetch(B, A)  # acknowledges; the answer with the new high watermark is the one that B loses
    partition[B].replica.high_watermark = Offset(1)
    assert partition[A].acknowledged == [2]
    partition.restart(B)
    assert (partition[B].replica.log_end_offset, partition[B].replica.high_watermark) == (2, 0)
    partition.kill(A)
    assert partition.elect()
    partition.see_all()
    assert partition[B].replica.role is Role.LEADING
    assert [batch.end_offset for batch in partition[B].batches()] == [1, 2]
    assert partition[B].replica.high_watermark == 2
    partition.register(A)
    assert len(settle(partition, B, A)) == 2


def test_kip_101_two_that_restart_after_a_power_loss_do_not_diverge() -> None:
    """KIP-101 scenario 2: the one that lost its tail leads, and writes at the same offset; the other cuts there."""
    partition = both(durable=False)
    partition[A].produce()
    partition[A].flush()
    partition.catch_up(B, A)
    partition[A].produce()
    partition[A].flush()
    partition.fetch(B, A)
    for broker in (A, B):
        partition.kill(broker)  # B had not flushed m2
    assert (partition[A].log.log_end_offset, partition[B].log.log_end_offset) == (2, 1)
    partition.register(B)
    assert not [each for each in partition.state.in_sync if partition.is_live(each)]
    partition.elect()
    assert partition.elect(unclean=B), "asynchronous durability: both crashed at once, an administrator decides"
    partition.see_all()
    partition[B].produce()
    partition.register(A)
    partition.see_all()
    assert partition.fetch(A, B) == TruncateTo(1)
    assert [batch.leader_epoch for batch in settle(partition, B, A)] == [1, partition.state.leader_epoch]


def test_kip_279_after_two_fast_leader_changes() -> None:
    """H2: A's epoch is unknown to B, and B's epoch end is past what A has of the one before: both are looked at."""
    partition = both()
    partition[A].produce()
    partition[A].flush()
    partition.catch_up(B, A)
    for _ in range(2):
        partition[A].produce()
    partition.lead(B)
    partition[B].see()
    partition[B].produce()
    assert [batch.leader_epoch for batch in partition[A].batches()] == [1, 1, 1]
    assert [batch.leader_epoch for batch in partition[B].batches()] == [1, 2]
    partition.lead(A)
    partition.see_all()
    partition[A].produce()
    assert [batch.leader_epoch for batch in partition[A].batches()] == [1, 1, 1, 3]
    assert partition.fetch(B, A) == TruncateTo(1), "A knows no epoch 2: its epoch 1 ends at 3, B's at 1"
    assert [batch.leader_epoch for batch in settle(partition, A, B)] == [1, 1, 1, 3]


def test_kip_279_a_leader_whose_epoch_is_missing_between() -> None:
    """H2: the follower has epochs 1 and 2, the leader 1 and 3 with more of 1: one answer is not enough, two are."""
    partition = ThreeReplicas(min_insync_replicas=1).start(A)
    partition[A].produce()
    partition[A].flush()
    for broker in (B, C):
        partition.catch_up(broker, A)
    partition[A].produce()
    partition.fetch(C, A)  # C has two of epoch 1, B one
    partition[C].flush()
    partition.lead(B)
    partition[B].see()
    for _ in range(3):
        partition[B].produce()  # epoch 2 at 1, 2, 3
    partition.lead(C)
    partition.see_all()
    partition[C].produce()  # epoch 3 at 2
    assert partition.fetch(B, C) == TruncateTo(1)
    assert [batch.leader_epoch for batch in settle(partition, C, A, B)] == [1, 1, 3]


def test_h3_the_same_broker_leads_again_and_the_epoch_between_was_missed() -> None:
    """KAFKA-7164: who never saw the epoch between verifies all the same, because every fetch is verified."""
    partition = both()
    partition[A].produce()
    partition[A].flush()
    partition.catch_up(B, A)
    partition.lead(B)
    partition[B].see()
    partition[B].produce()  # only B has it
    partition.lead(A)
    partition[A].see()
    partition[A].produce()
    partition[B].see()  # straight from epoch 2 to 3
    assert partition.fetch(B, A) == TruncateTo(1)
    assert [batch.leader_epoch for batch in settle(partition, A, B)] == [1, 3]


def test_kafka_7128_a_late_follower_does_not_join_by_an_old_high_watermark() -> None:
    """H9: B leads with a high watermark of before; C, behind what was committed, is at that high watermark."""
    partition = ThreeReplicas(min_insync_replicas=1).start(A)
    partition.write(leave(partition.state, [C]))
    partition.see_all()
    partition[A].produce(token=1)
    partition[A].flush()
    partition.fetch(B, A)
    partition[B].flush()
    partition.fetch(B, A)  # acknowledged by A; B does not know of it yet
    assert partition[A].acknowledged == [1]
    assert partition[B].replica.high_watermark <= 1
    partition[B].replica.high_watermark = Offset(0)
    partition.write(change(partition.state, leader=partition.session_of(B), in_sync=partition.state.in_sync))
    partition.see_all()
    assert (partition[B].replica.high_watermark, partition[B].replica.check_leading(-1).start_offset) == (0, 1)
    request = partition[C].request()
    assert request is not None
    answer = partition[B].answer(request)  # C at 0 is at the high watermark
    assert partition[B].proposals == []
    partition[C].take(answer)
    partition[C].flush()
    partition.fetch(C, B)
    (proposal,) = partition[B].proposals
    partition[B].handle(partition.apply(proposal))
    assert C in {entry.broker_id for entry in partition.state.in_sync}
    partition.check()


def test_kafka_13790_what_a_follower_had_in_another_epoch_does_not_commit() -> None:
    """H5: B acknowledged 2 to A; since then it lost that to C's epoch. A, leading again, starts from nothing."""
    partition = ThreeReplicas(min_insync_replicas=1).start(A)
    for _ in range(2):
        partition[A].produce()
        for broker in (B, C):
            partition.fetch(broker, A)
            partition[broker].flush()
    partition.fetch(B, A)
    partition.lead(C)
    partition[C].see()
    partition[B].see()
    partition[C].produce()
    partition.fetch(B, C)
    partition.lead(A)
    partition[A].see()
    assert partition[A].replica.high_watermark == 0, "no follower has fetched in this epoch"
    partition.see_all()
    settle(partition, A, B, C)
    assert partition[A].replica.high_watermark == partition[A].replica.log_end_offset


def test_the_last_replica_standing_loses_its_disk_and_others_lead() -> None:
    """KIP-966, H14: A was alone; those that left are electable, since nothing was committed without them."""
    partition = ThreeReplicas(min_insync_replicas=2).start(A)
    partition[A].produce(token=1)
    partition[A].flush()
    for broker in (B, C):
        partition.catch_up(broker, A)
    partition.at_ms = 2 * LAG_MAX_MS
    partition[A].tick()
    (proposal,) = partition[A].proposals
    partition[A].handle(partition.apply(proposal))
    partition[A].proposals.clear()
    assert [entry.broker_id for entry in partition.state.in_sync] == [A]
    assert [entry.broker_id for entry in partition.state.eligible_leaders] == [B, C]
    partition[A].produce(token=2)
    partition[A].flush()
    assert partition[A].acknowledged == [1], "alone it commits nothing"
    partition.unregister(A)
    assert partition.elect()
    partition.see_all()
    assert partition.state.leader == partition.session_of(B)
    partition.check()
    partition.register(A)
    partition.see_all()
    assert partition.fetch(A, B) == TruncateTo(1), "what was never acknowledged goes"


def test_a_zombie_leader_commits_nothing() -> None:
    """H4, H20: A has not seen that B leads; its members left its epoch, so its high watermark does not advance."""
    partition = ThreeReplicas(min_insync_replicas=2).start(A)
    request = partition[B].request()
    partition.lead(B)
    for broker in (B, C):
        partition[broker].see()
    partition[A].produce(token=9)
    partition[A].flush()
    assert request is not None
    partition[A].answer(request)  # of A's epoch, and late: it acknowledges what B had then
    assert (partition[A].replica.high_watermark, partition[A].acknowledged) == (0, [])
    partition[B].produce(token=1)
    partition[B].flush()
    partition.catch_up(C, B)
    partition[A].see()
    assert partition[A].abandoned == [9]
    settle(partition, B, A, C)
    assert partition[B].acknowledged == [1]


def test_a_zombie_leader_that_is_alone_in_sync_is_the_only_candidate() -> None:
    """H20: it still acknowledges records after its lease has expired, and no other replica is elected."""
    partition = both(min_insync_replicas=1)
    partition.write(leave(partition.state, [B]))
    partition[A].see()
    partition.live.pop(A)  # its lease ended; it has not heard
    partition.elect()
    assert partition.state.leader is None
    partition[A].produce(token=1)
    partition[A].flush()
    assert partition[A].acknowledged == [1]
    partition.check()
    assert partition.elect() is False


def test_a_lost_answer_of_an_expand_that_happened() -> None:
    """H12, KIP-497: rolled back in memory, the leader would commit without C while the key has C in sync."""
    partition = ThreeReplicas(min_insync_replicas=1).start(A)
    partition.write(leave(partition.state, [C]))
    partition.see_all()
    partition.catch_up(C, A)
    (proposal,) = partition[A].proposals
    partition.apply(proposal)
    partition[A].proposals.clear()
    partition[A].handle(ProposalUnanswered(proposal.number))
    partition[A].produce(token=1)
    partition[A].flush()
    partition.catch_up(B, A)
    assert partition[A].acknowledged == [], "C may be in sync, and has not got it"
    partition.kill(A)
    partition.kill(B)
    assert partition.elect()
    assert partition.state.leader == partition.session_of(C)
    partition.see_all()
    partition.check()


def test_a_late_diverged_does_not_cut_what_was_fetched_since() -> None:
    """H6: an answer to a fetch before the restart of the connection says `diverged, end 0`."""
    partition = ThreeReplicas(min_insync_replicas=1).start(A)
    old = partition[B].request()
    assert old is not None
    partition[B].replica.fetches.end()
    partition[A].produce(token=1)
    partition[A].flush()
    for broker in (B, C):
        partition.catch_up(broker, A)
    assert partition[A].acknowledged == [1]
    assert partition[B].take(FetchAnswer(old.token, old.leader_epoch, Diverged(0, 0))) is None
    assert partition[B].log.log_end_offset == 1
    partition.check()


def test_all_lose_power_at_once_and_nothing_acknowledged_is_lost() -> None:
    """I16: with durability=fsync what was acknowledged is on every member's stable storage."""
    partition = ThreeReplicas(min_insync_replicas=2).start(A)
    for token in range(5):
        partition[A].produce(token=token)
        partition[A].flush()
        for broker in (B, C):
            partition.catch_up(broker, A)
    partition[A].produce(token=99)
    partition[A].flush()
    for broker in (B, C, B, C):
        partition.fetch(broker, A)  # they have it, in their page caches
    assert partition[A].acknowledged == [0, 1, 2, 3, 4]
    partition[A].disk = MemoryFileSystem()  # and A's disk is gone for good
    partition[A].open()
    partition.live.pop(A)
    for broker in (B, C):
        partition.kill(broker, Loss.ALL)
    for broker in (C, B):
        partition.register(broker)
    assert partition.elect()
    partition.see_all()
    assert partition.state.leader is not None
    leader = partition.state.leader.broker_id
    assert [batch.end_offset for batch in partition[leader].batches()] == [1, 2, 3, 4, 5]
    partition.past.clear()  # a new disk is a new storage
    partition.register(A)
    settle(partition, leader, *({A, B, C} - {leader}))


def test_sequences_survive_a_failover() -> None:
    """H48, I20: the new leader has the windows from the log that it copied; retries are answered, gaps refused."""
    partition = ThreeReplicas(min_insync_replicas=2).start(A)
    for sequence in (0, 2, 4):
        partition[A].produce(2, producer=(7, 0, sequence))
    partition[A].flush()
    for broker in (B, C):
        partition.catch_up(broker, A)
    partition.kill(A)
    assert partition.elect()
    partition.see_all()
    duplicate = partition[B].replica.producers.check(7, 0, 2, 2)
    assert duplicate is not None
    assert (duplicate.base_offset, duplicate.end_offset) == (2, 4)
    assert partition[B].replica.producers.check(7, 0, 6, 2) is None
    partition[B].produce(2, producer=(7, 0, 6))
    partition.register(A)
    settle(partition, B, A, C)


def test_a_cut_takes_the_sequences_with_it() -> None:
    """I20, H48: what was cut was never committed, so the producer's retry of it is new again."""
    partition = both()
    partition[A].produce(2, producer=(7, 0, 0))
    partition[A].flush()
    partition.catch_up(B, A)
    partition[A].produce(2, producer=(7, 0, 2))
    partition.lead(B)
    partition.see_all()
    assert partition.fetch(A, B) == TruncateTo(2)
    assert partition[A].replica.producers.check(7, 0, 2, 2) is None
    partition[B].produce(2, producer=(7, 0, 2))
    settle(partition, B, A)


def test_a_topic_that_turned_to_fsync_promises_it_only_once_it_is_so() -> None:
    """H30, I3: what was committed in page caches is not on disks because the settings changed; then power fails."""
    partition = both(durable=False)
    partition[A].produce(token=1)
    partition.fetch(B, A)
    partition.fetch(B, A)
    assert partition[A].acknowledged == [1]
    partition.durable = True
    for broker in (A, B):
        partition[broker].handle(DurabilityChanged(True))
    partition[A].flush()
    partition[A].tick(heard=(B,))
    for proposal in partition[A].proposals:
        partition[A].handle(partition.apply(proposal))
    for broker in (A, B):
        partition.kill(broker, Loss.ALL)
    partition.register(B)
    partition.elect()
    partition.see_all()
    assert partition.state.leader is None, "B lost it: only an administrator may let B lead"
    partition.check()
