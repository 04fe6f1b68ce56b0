"""Reconciliation of one partition by the controller: a pure, level-triggered, stateless function.

It is evaluated again after every change. `change_partition` tries the steps of `Step` in their order and returns the
result of the first one that applies; each step is one write. The leader writes the same key, so a failed compare is
normal, and the next evaluation uses the new value. docs/protocols/metadata.md lists the steps.

It reaches a fixed point while brokers and topics do not change: steps only remove entries from the in-sync set or
replace them by later sessions, a hand-over is only requested to strictly less burdened members (`_burden`), the
preferred leader has no burden, and a move is finished once.

A live leader performs a hand-over itself: the controller names successors, the leader pauses appends and names the
next leader once that one has its whole log (H24).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.partition.topic_configs import effective_min_insync_replicas
from headrace.wire.ids import TopicId
from headrace_server.partition_state import Move, PartitionState, Replica, ask_hand_over, change

from headrace_coordinator.core.election import (
    RegisteredBroker,
    by_preference,
    carry_over,
    elect,
    is_session,
    reluctance,
)


class Step(Enum):
    """Reconciliation steps, in the order in which they are tried."""

    ELECT = "elect"
    """The leader's session has ended: elect another leader, or none."""
    SWEEP = "sweep"
    """The leader is live: remove members whose session ended, or update those whose data is complete (H16, H17)."""
    CONFIGURE = "configure"
    """Copy the topic's min_insync_replicas to the key (H30)."""
    LEAVE = "leave"
    """Remove a stopping broker that does not lead from the in-sync set if enough members stay (KIP-841)."""
    RELIEVE = "relieve"
    """Request a hand-over from a leader that is stopping, drained or being removed by a move (H24, H25)."""
    FINISH_MOVE = "finish_move"
    """Remove the old replicas of a move once all added ones are in sync (H25)."""
    PREFER = "prefer"
    """Request a hand-over to the first replica."""
    FILL = "fill"
    """Start a move to a broker that has less than its share of replicas; not tried by `change_partition`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Next value of a key, and the step that computed it."""

    step: Step
    after: PartitionState


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Write of a partition's key, computed from the version at `mod_revision`."""

    topic_id: TopicId
    partition: int
    mod_revision: int
    before: PartitionState
    after: PartitionState
    step: Step

    def sessions(self) -> tuple[Replica, ...]:
        """Return the sessions whose registration the write must compare."""
        return new_sessions(self.before, self.after)


def new_sessions(before: PartitionState, after: PartitionState) -> tuple[Replica, ...]:
    """Return the sessions that a write must compare (I12): those new in the key, and that of a new leader."""
    named = set(after.members) - set(before.members)
    if after.leader is not None and after.leader != before.leader:
        named.add(after.leader)
    return tuple(sorted(named))


def change_partition(
    state: PartitionState,
    live: Mapping[int, RegisteredBroker],
    min_insync_replicas: int,
    *,
    rebalance: bool = False,
) -> Decision | None:
    """Return the next value of a visible partition's key; `None` means that it needs no change.

    `live` holds the registered brokers by id. `min_insync_replicas` is the topic's setting; `0` means the default for
    the number of replicas. `rebalance` includes the step `PREFER`, which runs only periodically. Raises nothing; I11 is
    asserted on the result.
    """
    minimum = _minimum(state, min_insync_replicas)
    after = elect(state, live)
    if after is not None:
        return Decision(Step.ELECT, after)
    if state.leader is not None and (after := sweep(state, live)) is not None:
        return Decision(Step.SWEEP, after)
    # A lower minimum would drop eligible leaders; without a leader it has no use.
    if minimum > state.min_insync_replicas or (minimum < state.min_insync_replicas and state.leader is not None):
        after = change(state, leader=state.leader, in_sync=state.in_sync, min_insync_replicas=minimum)
        return Decision(Step.CONFIGURE, after)
    if state.leader is None:
        return None
    if (after := leave_stopping(state, live)) is not None:
        return Decision(Step.LEAVE, after)
    is_copied = is_move_copied(state, min_insync_replicas)
    if (after := relieve(state, live, giving_away=is_copied)) is not None:
        return Decision(Step.RELIEVE, after)
    if is_copied and state.leader.broker_id not in state.removing:
        return Decision(Step.FINISH_MOVE, finish_move(state, min_insync_replicas))
    if rebalance and (after := prefer(state, live)) is not None:
        return Decision(Step.PREFER, after)
    return None


def is_under_replicated(state: PartitionState) -> bool:
    """Return whether a replica is not in sync, other than one that a move is adding."""
    held = set(state.replicas) - set(state.adding)
    return not held <= {entry.broker_id for entry in state.in_sync}


def sweep(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Remove members whose session ended from the in-sync set, or write their new session if its data is complete.

    A removed member becomes eligible if fewer than `min_insync_replicas` stay, unless it came back without its data.
    """
    in_sync, doubtful = carry_over(state.in_sync, live, durable=state.durable)
    eligible, _ = carry_over(state.eligible_leaders, live, durable=state.durable)
    present = [entry for entry in in_sync if is_session(entry, live)]
    if tuple(present) == state.in_sync and tuple(eligible) == state.eligible_leaders:
        return None
    return change(state, leader=state.leader, in_sync=present, doubtful=doubtful, eligible_leaders=eligible)


def leave_stopping(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Remove stopping brokers that do not lead from the in-sync set, as many as `min_insync_replicas` allows.

    The last in replica order are removed first. All members are live, because `sweep` precedes this step.
    """
    spare = len(state.in_sync) - state.min_insync_replicas
    leaving = [entry for entry in state.in_sync if entry != state.leader and live[entry.broker_id].stopping]
    gone = leaving[max(0, len(leaving) - spare) :] if spare > 0 else []
    if not gone:
        return None
    return change(state, leader=state.leader, in_sync=[entry for entry in state.in_sync if entry not in gone])


def relieve(state: PartitionState, live: Mapping[int, RegisteredBroker], *, giving_away: bool) -> PartitionState | None:
    """Request a hand-over to the least burdened in-sync members, if they are less burdened than the leader.

    A requested successor that is now more burdened than the leader is withdrawn. `giving_away` means that the move in
    progress waits only for the leader.
    """
    assert state.leader is not None, "the caller asks where there is a leader"
    burden = {entry: _burden(entry, state, live, giving_away) for entry in state.in_sync}
    least = min(burden.values())
    wanted = state.successors
    if least < burden[state.leader]:
        wanted = by_preference(state, [entry for entry in state.in_sync if burden[entry] == least], live)
    elif any(burden[entry] > least for entry in wanted):
        wanted = ()
    return None if set(wanted) == set(state.successors) else ask_hand_over(state, wanted)


def is_move_copied(state: PartitionState, min_insync_replicas: int) -> bool:
    """Return whether a move can complete: all added replicas are in sync, and enough stay without the removed."""
    if not state.adding and not state.removing:
        return False
    stays = {entry.broker_id for entry in state.in_sync} - set(state.removing)
    target = len(state.replicas) - len(state.removing)
    return stays.issuperset(state.adding) and len(stays) >= effective_min_insync_replicas(min_insync_replicas, target)


def finish_move(state: PartitionState, min_insync_replicas: int) -> PartitionState:
    """Return the key without the removed replicas, of which none leads, once `is_move_copied`."""
    target = tuple(broker_id for broker_id in state.replicas if broker_id not in state.removing)
    return change(
        state,
        leader=state.leader,
        in_sync=[entry for entry in state.in_sync if entry.broker_id in target],
        min_insync_replicas=effective_min_insync_replicas(min_insync_replicas, len(target)),
        move=Move(target),
    )


def prefer(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Request a hand-over to the first replica, if it is in sync, not reluctant or suspected, and no move is active."""
    first = state.replica_of(state.replicas[0])
    if first is None or first == state.leader or not is_session(first, live):
        return None
    if state.adding or state.removing or state.successors:
        return None
    session = live[first.broker_id]
    if reluctance(session) or session.suspected_by:
        return None
    return ask_hand_over(state, (first,))


def _burden(
    entry: Replica, state: PartitionState, live: Mapping[int, RegisteredBroker], giving_away: bool
) -> tuple[bool, bool, bool]:
    """Return the reasons against an in-sync member as leader, the strongest first."""
    session = live[entry.broker_id]
    return session.stopping, giving_away and entry.broker_id in state.removing, session.drained


def _minimum(state: PartitionState, min_insync_replicas: int) -> int:
    """Return the effective min_insync_replicas; during a move it depends on the number of replicas before the move."""
    return effective_min_insync_replicas(min_insync_replicas, max(1, len(state.replicas) - len(state.adding)))
