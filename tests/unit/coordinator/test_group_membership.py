"""Membership through the calls, on the in-memory metastore: lost answers, old views, lost sessions, static members."""

from __future__ import annotations

import asyncio
import collections
from dataclasses import replace

import pytest
import structlog
from headrace.groups.assignors import AssignableTopic
from headrace.groups.heartbeats import MemberDeparture, MemberHeartbeat
from headrace.groups.state import Group, Member, begin_epochs
from headrace.groups.transition import transition
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    FencedInstanceError,
    FencedMemberEpochError,
    GroupTooLargeError,
    InvalidRequestError,
    InvalidTopicNameError,
    MetastoreUnavailableError,
    UnknownMemberError,
)
from headrace_coordinator.core import group_encoding
from headrace_coordinator.core.group_encoding import encode_assignments, encode_group
from headrace_coordinator.runtime import group_maintenance, group_transactions
from headrace_coordinator.runtime.group_transactions import TRANSACTION_SECONDS
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import Delete, Put
from headrace_server.partition_state import encode
from headrace_server.rpc import ITEMS_PER_TURN

from tests.fakes.lossy_metastore import LOST, NEVER
from tests.unit.coordinator.group_parts import (
    GROUP,
    Caller,
    delete_topic,
    error_of,
    make_topic,
    settle,
    until,
)
from tests.unit.coordinator.parts import SECONDS


async def test_partitions_go_over_only_when_they_were_given_up(pair, one, two):
    """A member joins: what it is to have stays with its owner until that says it gave it up, then it is granted."""
    _, a, b = pair
    await one.beat(a)
    assert one.numbers == [0, 1, 2, 3]
    await two.beat(b)
    assert two.numbers == []
    await one.beat(a, wait_ms=1_000)
    assert sorted(n for _, n in one.may_own) == [0, 1]
    await two.beat(b)
    assert two.numbers == []
    await one.turn(a)
    await two.beat(b, wait_ms=1_000)
    assert (one.numbers, two.numbers) == ([0, 1], [2, 3])
    assert min(two.holds.values()) > max(one.holds.values())


@pytest.mark.parametrize("faults", [[LOST], [NEVER], [LOST, NEVER], [NEVER, LOST]])
async def test_a_join_takes_effect_once_whatever_answers_are_lost(a, faults):
    """One member, one lease, one live key."""
    a.metastore.faults = list(faults)
    one = Caller(1)
    await one.beat(a)
    assert one.numbers == [0, 1, 2, 3]
    assert list(a.group.members) == list(a.entry().live) == [one.id]
    assert a.group.members[one.id].lease_id == a.entry().live[one.id].lease_id


async def test_a_join_that_is_sent_again_elsewhere_is_the_same_join(pair):
    """The second coordinator has not heard of the first join; the lease that it made for nothing is given back."""
    parts, a, b = pair
    await b.pause_view()
    one, again = Caller(1), Caller(1)
    await one.beat(a)
    leases = parts.memory.state.leases
    assert len(leases) == 1
    joining = asyncio.create_task(again.beat(b))
    await until(lambda: len(leases) == 2)
    b.follow()
    await joining
    assert again.holds == one.holds
    assert len(leases) == 1


async def test_a_join_whose_lease_has_ended_does_not_stop_the_group(a, one, two):
    """It gets an error that its session is over; concurrent joins succeed."""

    async def end_lease(compares, operations):
        for put in operations:
            if isinstance(put, Put) and put.lease_id and one.id.hex() in put.key:
                a.metastore.before_txn = None
                await a.parts.memory.revoke_lease(put.lease_id)

    a.metastore.before_txn = end_lease
    ended, _ = await asyncio.gather(error_of(one.beat(a)), two.beat(a))
    assert isinstance(ended, UnknownMemberError)
    assert list(a.group.members) == [two.id]
    assert not a.transactions._waiting


async def test_a_join_without_a_waiting_caller_does_not_happen(a):
    """The caller gave up while etcd was away: no ghost holds partitions for a session's time."""
    a.metastore.faults = [NEVER] * 100
    one = Caller(1)
    assert isinstance(await error_of(one.beat(a, seconds=0.2)), MetastoreUnavailableError)
    a.metastore.faults = []
    two = Caller(2)
    await two.beat(a)
    assert list(a.group.members) == [two.id]


async def test_a_member_may_join_again_under_its_id_once_its_session_is_over(a, one):
    """Whether it was removed before or not: its keys are never deleted and put in one transaction."""
    await one.beat(a)
    await a.parts.memory.revoke_lease(a.entry().live[one.id].lease_id)
    await a.see()
    await until(lambda: not a.entry().live)
    assert one.id in a.group.members
    again = Caller(1)
    await again.beat(a)
    assert again.numbers == [0, 1, 2, 3]
    assert min(again.holds.values()) > max(one.holds.values())


async def test_a_lost_session_is_told_though_the_view_is_old(pair, one, two):
    """Neither a heartbeat nor a repeated join is answered from memory (H73, H76)."""
    parts, a, b = pair
    await one.beat(b)
    await b.pause_view()
    await a.transactions.leave(GROUP, MemberDeparture(one.id), parts.deadline)  # Removed; its lease lives on.
    await two.beat(a)
    assert isinstance(await error_of(one.beat(b)), UnknownMemberError)
    assert isinstance(await error_of(Caller(1).beat(b)), UnknownMemberError)
    one.fields["instance_id"] = "i"  # Whether it was replaced this view does not say.
    assert isinstance(await error_of(one.beat(b)), MetastoreUnavailableError)


async def test_a_dead_member_is_removed_and_its_partitions_go_over(a, one, two):
    """Its lease is gone: the transaction compares that, and frees what it owned."""
    await settle(a, one, two)
    await a.parts.memory.revoke_lease(a.entry().live[two.id].lease_id)
    await until(lambda: two.id not in a.entry().live)
    a.transactions.look(GROUP)
    await until(lambda: two.id not in a.group.members)
    await one.beat(a)
    assert one.numbers == [0, 1, 2, 3]
    assert isinstance(await error_of(two.beat(a)), UnknownMemberError)
    assert a.parts.metric("group_evictions") == 1


async def test_no_member_is_fenced_by_a_coordinator_that_is_behind(pair, one, two):
    """The member was told at `a` what `b` has not seen yet: `b` waits, and says METASTORE_UNAVAILABLE if in vain."""
    _, a, b = pair
    await one.beat(a)
    await b.see()
    await b.pause_view()
    await two.beat(a)
    await one.turn(a)
    late = asyncio.create_task(one.beat(b))
    await asyncio.sleep(0)
    b.follow()
    await late
    await b.pause_view()
    await Caller(3).beat(a)
    await one.turn(a)
    assert isinstance(await error_of(one.beat(b)), MetastoreUnavailableError)


async def test_a_late_heartbeat_of_another_epoch_frees_nothing(a, one, two):
    """I25: only what was said of the present assignment counts."""
    await one.beat(a)
    epoch, revision = one.epoch, one.revision
    await two.beat(a)
    await one.beat(a)
    late = Caller(1)
    late.epoch, late.revision = epoch, revision
    await late.beat(a, owned=[])
    assert len(a.group.owned_by(one.id)) == 4
    ahead = Caller(1)
    ahead.epoch, ahead.revision = one.epoch + 1, one.revision
    assert isinstance(await error_of(ahead.beat(a)), FencedMemberEpochError)


async def test_a_static_member_takes_its_place_and_the_former_life_is_fenced(pair):
    """H69: nothing moves; the old life is told FENCED_INSTANCE, also where its heartbeat is waiting."""
    _, a, b = pair
    old, other = Caller(1, instance_id="i"), Caller(2)
    await settle(a, old, other)
    waiting = asyncio.create_task(error_of(old.beat(b, wait_ms=2_000)))
    new = Caller(3, instance_id="i")
    await new.beat(a)
    assert new.numbers == old.numbers
    assert min(new.holds.values()) > max(old.holds.values())
    assert isinstance(await waiting, FencedInstanceError)
    assert isinstance(await error_of(old.beat(a)), FencedInstanceError)
    revision = other.revision
    await other.beat(a)
    assert other.revision == revision


async def test_static_members_that_restart_together_share_an_epoch(a):
    """A group's epochs are never ahead of etcd's revision, from which those of the next group of its name begin."""
    old = [Caller(seed, instance_id=str(seed)) for seed in range(4)]
    await settle(a, *old)
    epoch, written = a.group.group_epoch, len(a.metastore.sent)
    new = [Caller(10 + seed, instance_id=str(seed)) for seed in range(4)]
    await asyncio.gather(*(member.beat(a) for member in new))
    assert [member.numbers for member in new] == [member.numbers for member in old]
    assert 1 <= a.group.group_epoch - epoch <= len(a.metastore.sent) - written < 4
    assert all(min(after.holds.values()) > max(before.holds.values()) for before, after in zip(old, new, strict=True))


async def test_of_two_lives_that_join_at_once_one_stays(a):
    """Both in one round: the one is replaced by the other and told so."""
    answers = await asyncio.gather(*(Caller(seed, instance_id="i").beat(a) for seed in (1, 2)), return_exceptions=True)
    fenced = [answer for answer in answers if isinstance(answer, FencedInstanceError)]
    assert len(fenced) == len(a.group.members) == 1


async def test_a_static_member_that_comes_back_while_it_was_to_give_up_has_given_it_up(a):
    """Its former life is over, so that no member has to wait for it."""
    old, other = Caller(1, instance_id="i"), Caller(2)
    await old.beat(a)
    await other.beat(a)
    new = Caller(3, instance_id="i")
    await new.beat(a)
    await other.beat(a)
    assert (len(new.holds), len(other.holds)) == (2, 2)


def test_what_is_not_for_a_static_member_that_comes_back_it_never_owns():
    """Another joins in the same transition: no partition is granted twice at one epoch (I24)."""

    def after(group, *members):
        heartbeats = [MemberHeartbeat(member, 0, "range", None) for member in members]
        return transition(
            group, heartbeats=heartbeats, leaving=(), live={*group.members, *(each.member_id for each in members)},
            topics={"t": AssignableTopic(b"t", "t", 2)}, deleted=(), stored={}, encode_assignments=encode_assignments,
            begun={}, overdue=(), now_ms=1,
        ).group  # fmt: skip

    places = ((b"0", "i"), (b"1", "i"), (b"2", ""))
    before, back, other = (Member(name, place, topics=("t",)) for name, place in places)
    group = after(after(Group(), before), back, other)
    assert group.target == {partition: owner.member_id for partition, owner in group.owners.items()}
    assert {owner.member_id for owner in group.owners.values()} == {b"1", b"2"}
    assert {owner.assignment_epoch for owner in group.owners.values()} == {group.group_epoch}


async def test_a_member_that_does_not_release_in_time_is_removed(a, one, two):
    """After the rebalance timeout, as the coordinator counts that puts it out."""
    await one.beat(a)
    await two.beat(a)
    await one.beat(a)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(59_999)
    await two.beat(a)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(1)
    assert a.maintenance._needs_a_transaction(GROUP)
    a.transactions.look(GROUP)
    await until(lambda: one.id not in a.group.members)
    await two.beat(a)
    assert two.numbers == [0, 1, 2, 3]
    assert isinstance(await error_of(one.beat(a)), UnknownMemberError)


async def test_coordinators_clocks_may_be_days_apart(pair):
    """Each counts the rebalance timeout on its own monotonic clock; one that takes over begins to count anew."""
    _, a, b = pair
    a.clock.set_wall(-86_400_000)
    b.clock.set_wall(86_400_000)
    one, two = Caller(1), Caller(2)
    await one.beat(a)
    await two.beat(a)
    await one.beat(a)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(50_000)
    a.clock.set_wall(86_400_000)
    await b.see()
    await two.beat(b)
    assert not a.maintenance._needs_a_transaction(GROUP)
    assert not b.maintenance._needs_a_transaction(GROUP)
    b.clock.set_wall(-100 * 86_400_000)
    b.clock.advance(59_999)
    assert not b.maintenance._needs_a_transaction(GROUP)
    b.clock.advance(1)
    assert b.maintenance._needs_a_transaction(GROUP)
    b.transactions.look(GROUP)
    await until(lambda: one.id not in b.group.members)


async def test_the_time_to_give_up_begins_anew_with_each_occasion(a):
    """Who gave up in time has the whole time again when it is asked for something else."""
    one, two, three = Caller(1), Caller(2), Caller(3)
    await one.beat(a)
    await two.beat(a)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(50_000)
    await settle(a, one, two)
    await three.beat(a)
    revoking = [m for m, member in a.group.members.items() if member.revoking_since_ms]
    assert revoking
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(59_999)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(1)
    assert a.maintenance._needs_a_transaction(GROUP)


async def test_the_time_to_give_up_begins_anew_with_each_release(a):
    """A member that releases in time is not removed because it was asked for others before the first were released."""
    one, two, three, four = (Caller(seed) for seed in range(1, 5))
    await one.beat(a)
    await two.beat(a)
    await one.beat(a)
    first = one.holds.keys() - one.may_own.keys()
    a.clock.advance(35_000)
    await three.beat(a)
    await four.beat(a)
    await one.beat(a)
    assert len(one.holds.keys() - one.may_own.keys() - first) == 1
    a.clock.advance(5_000)
    for partition in first:
        del one.holds[partition]
    await one.beat(a)
    assert a.group.members[one.id].revoking_since_ms
    a.clock.advance(59_999)
    assert not a.maintenance._needs_a_transaction(GROUP)
    a.clock.advance(1)
    assert a.maintenance._needs_a_transaction(GROUP)


async def test_what_a_coordinator_left_half_done_another_one_finds(pair, one, two):
    """The state is written, an assignment is not: with 128 operations a transaction that happens."""
    parts, a, b = pair
    await settle(a, one, two)
    await b.see()
    assert not b.maintenance._needs_a_transaction(GROUP)
    told = a.entry().assignments[one.id]
    await parts.memory.txn([], [Put(told.key, metadata_pb2.MemberAssignment(member_epoch=1).SerializeToString())])
    state = a.group
    await parts.memory.txn([], [Put(parts.keyspace.group(GROUP), encode_group(state))])
    await b.see()
    b.maintenance._look_late(GROUP)
    await until(lambda: not b.transactions._waiting)
    await b.see()
    assert b.entry().assignments[one.id].value == told.value
    assert not b.maintenance._needs_a_transaction(GROUP)


async def test_groups_are_examined_a_few_at_a_time(a, one, monkeypatch):
    """Between two turns of the event loop, by maintenance and after a topic was created; in-sync sets do not count."""
    await one.beat(a)
    await _copy_group(a, 40)
    calls, turn = [], 0

    def counted(*arguments, **fields):
        calls.append(turn)
        return transition(*arguments, **fields)

    async def count_turns():
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(group_maintenance, "ROUND_SECONDS", 0)
    for module in (group_maintenance, group_transactions):
        monkeypatch.setattr(module, "transition", counted)
    tasks = [asyncio.create_task(count_turns()), asyncio.create_task(a.maintenance.run())]
    await until(lambda: len(calls) >= 40)
    await make_topic(a.parts, "u", 1)
    await until(lambda: len(calls) >= 80)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert max(collections.Counter(calls).values()) <= 2 * ITEMS_PER_TURN
    assert not a.maintenance._needs_a_transaction(GROUP)
    calls.clear()
    partition = a.parts.view.partition(a.parts.topic_id, 0)
    smaller = encode(replace(partition.state, partition_epoch=partition.state.partition_epoch + 1))
    written = await a.parts.memory.txn([], [Put(a.parts.keyspace.partition(a.parts.topic_id, 0), smaller)])
    await a.parts.prefix_view.wait_for(written.revision, SECONDS)
    assert not a.maintenance._needs_a_transaction(GROUP)
    assert not calls


async def _copy_group(a, copies):
    """Copy the keys of the group to others."""
    prefix = a.parts.keyspace.group(GROUP).removesuffix("state")
    stored = (await a.parts.memory.range(prefix)).key_values
    for number in range(copies):
        other = a.parts.keyspace.group(f"{GROUP}-{number}").removesuffix("state")
        await a.parts.memory.txn(
            [], [Put(other + found.key.removeprefix(prefix), found.value, found.lease_id) for found in stored]
        )
    await a.see()


async def test_topics_that_come_grow_and_go_are_followed(a):
    """A pattern that matches nothing waits; a topic that appears is assigned; one deleted and made anew is another."""
    one = Caller(1, topics=[], topic_pattern="n[ab]*")
    await one.beat(a)
    assert one.holds == {}
    na = await make_topic(a.parts, "na", 2)
    assert a.maintenance._needs_a_transaction(GROUP)
    await one.beat(a, topic_pattern="n[ab]*")
    a.transactions.look(GROUP)
    await one.beat(a, wait_ms=2_000)
    assert set(one.holds) == {(na, 0), (na, 1)}
    await delete_topic(a.parts, na, "na")
    fresh = await make_topic(a.parts, "na", 1)
    a.transactions.look(GROUP)
    await until(lambda: any(partition[0] == fresh for partition in a.group.owners))
    await one.beat(a)
    assert set(one.may_own) == {(fresh, 0)}
    assert not a.maintenance._needs_a_transaction(GROUP)


@pytest.mark.parametrize("why", ["behind", "undecodable", "lost"])
async def test_a_topic_that_is_only_absent_keeps_its_owners(pair, why, one):
    """H72: a view may be behind or unable to decode; what etcd does not say to be deleted is still there."""
    parts, a, b = pair
    await one.beat(a)
    await b.see()
    key = parts.keyspace.topic("t")
    match why:
        case "behind":
            b.transactions._topics = AbsentTopics()
        case "undecodable":
            written = await parts.memory.txn([], [Put(key, b"\xff of a later release")])
            await parts.prefix_view.wait_for(written.revision, SECONDS)
        case "lost":
            written = await parts.memory.txn([], [Delete(key), Delete(parts.keyspace.topic_by_id(parts.topic_id))])
            await parts.prefix_view.wait_for(written.revision, SECONDS)
    before = b.entry().mod_revision
    result = b.transactions._compute(b.entry(), b.group, {}, (), frozenset())
    assert not result.changes(b.group)
    assert len(result.group.owned_by(one.id)) == 4
    await one.beat(b)
    assert b.entry().mod_revision == before


class AbsentTopics:
    """Those of a coordinator that has seen none yet."""

    deleted: tuple[bytes, ...] = ()

    def get(self):
        return {}


async def test_a_subscription_that_changes_is_given_up_first(a):
    """What it no longer wants stays its own until it says so, and then the state forgets the topic; no flapping."""
    await make_topic(a.parts, "u", 2)
    one = Caller(1, topics=["t", "u"])
    await one.beat(a)
    one.fields["topics"] = ["u"]
    await one.beat(a)
    assert (len(one.may_own), len(one.holds), len(a.group.owners)) == (2, 6, 6)
    epoch = a.group.group_epoch
    assert not a.maintenance._needs_a_transaction(GROUP)
    one.holds = dict(one.may_own)
    await one.beat(a)
    assert (len(a.group.owners), len(a.group.topics)) == (2, 1)
    assert a.group.group_epoch == epoch
    assert not a.maintenance._needs_a_transaction(GROUP)


@pytest.mark.parametrize("pair", [400], indirect=True)
async def test_three_hundred_members_join_in_transactions_that_etcd_takes(pair):
    """All at once: rounds of what fits, then everybody is told, and everything is owned once."""
    parts, a, _ = pair
    members = [Caller(seed) for seed in range(300)]
    await asyncio.gather(*(member.beat(a) for member in members))
    for _ in range(6):
        await asyncio.gather(*(member.turn(a) for member in members))
    owned = [partition for member in members for partition in member.holds]
    assert len(owned) == len(set(owned)) == 400
    assert max(len(member.holds) for member in members) == 2
    assert all(len(operations) <= 128 and len(compares) <= 128 for compares, operations in a.metastore.sent)
    departures = [MemberDeparture(member.id) for member in members]
    await asyncio.gather(*(a.transactions.leave(GROUP, departure, parts.deadline) for departure in departures))
    assert not a.group.members
    assert not a.entry().live


async def test_an_assignment_of_any_size_is_written(a, monkeypatch):
    """Alone, once the state is: the event loop does not turn for it in vain, and the state is not written again."""
    monkeypatch.setattr("headrace.groups.transition.MAX_ASSIGNMENT_BYTES", 1)
    run, turns = a.transactions._run_transaction, []

    async def count(group_id, waiting):
        turns.append(group_id)
        assert len(turns) < 20, "the group's transactions do not end"
        return await run(group_id, waiting)

    monkeypatch.setattr(a.transactions, "_run_transaction", count)
    one, two = Caller(1, topics=["t", "u"]), Caller(2, topics=["t", "u"])
    await settle(a, one, two)
    await make_topic(a.parts, "u", 2)
    turns.clear()
    a.transactions.look(GROUP)
    await until(lambda: not a.transactions._waiting)
    for member in (one, two):
        await member.beat(a)
    assert len(one.holds) + len(two.holds) == 6
    assert not a.maintenance._needs_a_transaction(GROUP)
    state = a.parts.keyspace.group(GROUP)
    written = [[each.key for each in operations] for _, operations in a.metastore.sent[-3:]]
    assert [(state in keys, len(keys)) for keys in written] == [(True, 1), (False, 1), (False, 1)]


@pytest.mark.parametrize("call", ["renew_lease", "grant_lease", "txn"])
async def test_while_etcd_is_silent_a_heartbeat_fails_before_its_deadline(a, call, one, two):
    """However short the caller's time: `health()` is to name etcd, and not the coordinators."""
    await one.beat(a)
    asked = asyncio.Event()

    async def never(*arguments):
        asked.set()
        await asyncio.Event().wait()

    setattr(a.metastore, call, never)
    error = await error_of((one if call == "renew_lease" else two).beat(a, seconds=0.3))
    assert isinstance(error, MetastoreUnavailableError)
    assert asked.is_set()


async def test_members_that_join_at_once_share_rounds(a):
    """H68: joins, one by one or concurrent, are writes that begin a tenth of a second apart."""
    a.transactions._transaction_seconds = TRANSACTION_SECONDS
    written, loop = [], asyncio.get_running_loop()
    a.metastore.before_txn = lambda compares, operations: _note_state(a.parts, operations, written)
    started = loop.time()
    for seed in range(5):
        await Caller(seed).beat(a)
    await asyncio.gather(*(Caller(seed).beat(a) for seed in range(5, 40)))
    assert len(a.group.members) == 40
    assert len(written) >= 6
    assert written[-1] - started >= (len(written) - 1) * TRANSACTION_SECONDS


async def _note_state(parts, operations, written):
    """Note a round; what creates the key of a new group is none."""
    if len(operations) > 1 and any(
        isinstance(each, Put) and each.key == parts.keyspace.group(GROUP) for each in operations
    ):
        written.append(asyncio.get_running_loop().time())


async def test_a_group_that_was_deleted_and_made_anew_has_larger_epochs(a):
    """A store that keeps the largest token of a partition accepts the owners of the new group (I24, I28)."""
    tokens = []
    for seed in (1, 2, 3):
        member = Caller(seed)
        await member.beat(a)
        tokens += [owner.assignment_epoch for owner in a.group.owners.values()][:1]
        assert a.group.group_epoch >= a.groups.entry(GROUP).create_revision
        await a.transactions.leave(GROUP, MemberDeparture(member.id), a.parts.deadline)
        await a.offsets.delete_group(GROUP, a.parts.deadline)
        assert a.groups.entry(GROUP).is_gone
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3


def test_epochs_begin_above_those_of_earlier_generations():
    """After a restore etcd's revisions repeat; the generation does not."""
    assert begin_epochs(Group(), 2, 5).group_epoch > begin_epochs(Group(), 1, 10**9).group_epoch
    assert begin_epochs(Group(group_epoch=7, assignment_epoch=7), 2, 5).group_epoch == 7


async def test_a_group_takes_no_more_than_fits_into_its_key(a, monkeypatch, one):
    """A join or a larger subscription is refused with GROUP_TOO_LARGE; the members stay."""
    await one.beat(a)
    monkeypatch.setattr(group_encoding, "MAX_STATE_BYTES", len(encode_group(a.group)) + 30)
    assert isinstance(await error_of(Caller(2).beat(a)), GroupTooLargeError)
    larger = [f"topic-{number}" for number in range(50)]
    assert isinstance(await error_of(one.beat(a, topics=larger)), GroupTooLargeError)
    await one.beat(a)
    assert a.group.members[one.id].topics == ("t",)
    assert len(a.parts.memory.state.leases) == 1


async def test_a_group_takes_no_more_than_fits_into_one_transaction(a, monkeypatch):
    """A join whose assignment does not fit in addition to the state is refused with GROUP_TOO_LARGE as well."""
    monkeypatch.setattr(group_encoding, "MAX_TRANSACTION_BYTES", 100)
    assert isinstance(await error_of(Caller(1).beat(a)), GroupTooLargeError)
    assert not a.group.members
    assert not a.parts.memory.state.leases


async def test_a_static_member_takes_its_place_in_a_group_that_fills_its_key(a, monkeypatch):
    """Also with a join that the same transaction refuses."""
    await Caller(1, instance_id="i").beat(a)
    monkeypatch.setattr(group_encoding, "MAX_STATE_BYTES", len(encode_group(a.group)) + 30)
    again = Caller(3, instance_id="i")
    refused, _ = await asyncio.gather(error_of(Caller(2).beat(a)), again.beat(a))
    assert isinstance(refused, GroupTooLargeError)
    assert list(a.group.members) == [again.id]


async def test_a_member_waits_for_news_no_longer_than_its_interval(pair):
    """A long poll ends with a change, or after the interval of the answer: it does not renew the lease meanwhile."""
    _, a, b = pair
    one = Caller(1, session_timeout_ms=1_000)
    answer = await one.beat(a)
    assert answer.heartbeat_interval_ms == 250
    assert answer.assignor == "uniform"
    revision = one.revision
    await one.beat(a, wait_ms=86_400_000)
    assert one.revision == revision
    waiting = asyncio.create_task(one.beat(a, wait_ms=250))
    await Caller(2).beat(b)
    await waiting
    assert one.revision > revision


async def test_members_that_joined_together_do_not_stay_in_step(a):
    """Each is given its own part of the wait: a hundred heartbeats in one moment would wait for each other."""
    long, short = Caller(1, session_timeout_ms=1_000), Caller(2, session_timeout_ms=1_000)
    long.id, short.id = bytes(16), b"\xff" * 16
    await settle(a, long, short)
    waits = [asyncio.create_task(each.beat(a, wait_ms=250)) for each in (long, short)]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waits[1]}
    await waits[0]


async def test_leaving_twice_is_leaving(pair, one, two):
    """And the lease is given back."""
    parts, a, b = pair
    await settle(a, one, two)
    request = groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=two.id)
    await a.call("LeaveGroup", request)
    await b.call("LeaveGroup", request)
    await one.beat(a)
    assert one.numbers == [0, 1, 2, 3]
    assert len(parts.memory.state.leases) == 1
    await a.call("LeaveGroup", groups_pb2.LeaveGroupRequest(group_id="unknown", member_id=two.id))


async def test_a_member_leaves_at_a_coordinator_that_has_not_seen_it(pair, one):
    """It answers once its view shows the member and the member has left, and otherwise that it is behind."""
    parts, a, b = pair
    await b.pause_view()
    await one.beat(a)
    request = groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=one.id)
    assert isinstance(await error_of(b.call("LeaveGroup", request, seconds=0.1)), MetastoreUnavailableError)
    leaving = asyncio.create_task(b.call("LeaveGroup", request))
    await asyncio.sleep(0)
    b.follow()
    await leaving
    assert not a.group.members
    assert not parts.memory.state.leases


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, InvalidRequestError),
        ({"group_id": "g" * 10_000}, InvalidRequestError),
        ({"group_id": "a/b"}, InvalidRequestError),
        ({"group_id": ".."}, InvalidRequestError),
        ({"member_id": b"short"}, InvalidRequestError),
        ({"topics": []}, InvalidRequestError),
        ({"topics": ["no/slash"]}, InvalidTopicNameError),
        ({"topics": [f"t{number}" for number in range(1_001)]}, InvalidRequestError),
        ({"topic_pattern": "(a+)+$"}, InvalidRequestError),
        ({"instance_id": "a/b"}, InvalidRequestError),
        ({"assignor": "fastest"}, InvalidRequestError),
        ({"session_timeout_ms": 999}, InvalidRequestError),
        ({"rebalance_timeout_ms": 0}, InvalidRequestError),
        ({"member_epoch": -1}, InvalidRequestError),
        ({"member_epoch": 7}, UnknownMemberError),
    ],
)
async def test_bad_heartbeats_are_refused_and_leave_nothing(a, fields, error):
    """Typed, with what is wrong; no key, no lease."""
    request = {
        "group_id": GROUP,
        "member_id": b"m" * 16,
        "topics": ["t"],
        "session_timeout_ms": 1_000,
        "rebalance_timeout_ms": 1_000,
    }
    refused = await error_of(a.call("Heartbeat", groups_pb2.HeartbeatRequest(**request | fields)))
    assert type(refused) is error
    assert refused.message
    assert not (await a.parts.memory.range(a.parts.keyspace.groups_prefix)).key_values
    assert not a.parts.memory.state.leases


async def test_a_lost_compare_whose_cause_the_view_shows_already_is_tried_again_at_once(pair, monkeypatch):
    """The pause is for a view that is behind."""
    monkeypatch.setattr(group_transactions, "RETRY_SECONDS", (10 * SECONDS, 10 * SECONDS))
    _, a, b = pair
    one, two, three = Caller(1), Caller(2), Caller(3)
    await one.beat(a)
    await until(lambda: one.id in b.group.members)
    txn = b.metastore.txn

    async def after_another(compares, operations):
        monkeypatch.setattr(b.metastore, "txn", txn)
        await two.beat(a)
        await until(lambda: two.id in b.group.members)
        return await txn(compares, operations)

    monkeypatch.setattr(b.metastore, "txn", after_another)
    await three.beat(b)
    assert set(b.group.members) == {one.id, two.id, three.id}


async def test_each_new_assignment_is_counted_and_logged_once(a, one, two):
    """By the coordinator that wrote it; a heartbeat that changes nothing is neither."""
    with structlog.testing.capture_logs() as logs:
        await one.beat(a)
        await one.beat(a)
        assert a.parts.metric("group_rebalances") == 1
        await two.beat(a)
        await settle(a, one, two)
    assert a.parts.metric("group_rebalances") == 2
    joined = [entry["joined"] for entry in logs if entry["event"] == "group_changed"]
    assert joined == [[one.id.hex()], [two.id.hex()]]


async def test_a_violation_in_a_round_ends_the_coordinator(a, monkeypatch):
    """Who waits is answered, and a core that is wrong decides nothing more."""

    def violate(*arguments, **fields):
        raise AssertionError("I24")

    monkeypatch.setattr(group_transactions, "transition", violate)
    ends = asyncio.create_task(a.transactions.run())
    with pytest.raises(AssertionError, match="I24"):
        await Caller(1).beat(a)
    with pytest.raises(AssertionError, match="I24"):
        await asyncio.wait_for(ends, SECONDS)
