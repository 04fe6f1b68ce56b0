"""Reassignment of a partition's replicas on an administrator's request: checks and the next key (PROTOCOL H25).

A move adds replicas first and removes them last. `replicas` holds the target brokers in their order, followed by the
brokers to remove. The leader adds new replicas to the in-sync set as they catch up, and the controller finishes the
move (`control.finish_move`). A move in progress can be changed, throttled or cancelled. Pure; used by the coordinator
that serves the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.placement.policy import MAX_REPLICATION_FACTOR, PlacementPolicy
from headrace.wire.errors import InvalidReplicationFactorError, InvalidRequestError, UnknownBrokerError
from headrace_server.partition_state import Move, PartitionState, change

from headrace_coordinator.core.election import RegisteredBroker, reluctance
from headrace_coordinator.core.topics import check_policy


def check_target(
    state: PartitionState, target: Sequence[int], live: Mapping[int, RegisteredBroker], policy: PlacementPolicy
) -> None:
    """Check the target brokers of a move.

    Brokers that already have a replica need not be live: a dead broker is one reason to move. Another order, or another
    throttle, of the current target is not checked against the policy, which may have changed since.

    Raises:
        InvalidRequestError: If `target` is empty, names a broker twice, or differs from the topic's placement policy.
        InvalidReplicationFactorError: If `target` has too many brokers.
        UnknownBrokerError: If a new broker is not registered or accepts no new replicas.
    """
    if not target or len(set(target)) != len(target):
        raise InvalidRequestError(
            f"the brokers {list(target)} cannot hold a partition", action="Name at least one broker, and each once."
        )
    if len(target) > MAX_REPLICATION_FACTOR:
        raise InvalidReplicationFactorError(
            f"{len(target)} replicas are more than {MAX_REPLICATION_FACTOR}",
            action=f"Name 1 to {MAX_REPLICATION_FACTOR} brokers.",
        )
    usable = [
        broker_id for broker_id, session in live.items() if not reluctance(session) and not session.takes_no_replicas
    ]
    for broker_id in target:
        if broker_id not in state.replicas and broker_id not in usable:
            reason = live[broker_id].takes_no_replicas if broker_id in live else ""
            raise UnknownBrokerError(
                f"broker {broker_id} accepts no new replicas: {reason or 'it is not registered, or is draining'}",
                action=f"Move to brokers that accept them: {', '.join(map(str, usable)) or 'there are none'}.",
            )
    if set(target) != set(state.replicas) - set(state.removing):
        check_policy(policy, {broker_id: session.data_center for broker_id, session in live.items()}, target)


def plan_move(state: PartitionState, target: Sequence[int], copy_bytes_per_second: int) -> PartitionState | None:
    """Return the key with a move to `target`, or `None` if the replicas are there or already moving there.

    `target` has passed `check_target`. `copy_bytes_per_second` >= 0 is the throttle; `0` means none. Replicas that an
    earlier move was adding and that are not in `target` are dropped at once, unless one leads or `min_insync_replicas`
    needs them; then they are removed when this move finishes.
    """
    dropped = set(state.adding) - set(target)
    stays = [entry for entry in state.in_sync if entry.broker_id not in dropped]
    if len(stays) < state.min_insync_replicas or (state.leader is not None and state.leader not in stays):
        dropped -= {entry.broker_id for entry in state.members}
        stays = list(state.in_sync)
    held = [broker_id for broker_id in state.replicas if broker_id not in dropped and not _is_copying(state, broker_id)]
    adding = tuple(broker_id for broker_id in target if broker_id not in held)
    removing = tuple(broker_id for broker_id in held if broker_id not in target)
    move = Move((*target, *removing), adding, removing, copy_bytes_per_second if adding else 0)
    if move == Move(state.replicas, state.adding, state.removing, state.copy_bytes_per_second):
        return None
    return change(state, leader=state.leader, in_sync=stays, move=move)


def plan_cancel(state: PartitionState) -> PartitionState | None:
    """Return the key with a move back to the brokers before the current move, or `None` if there is no move.

    The key does not contain their original order: brokers that were to stay come first, in the order of the move.
    """
    if not state.adding and not state.removing:
        return None
    return plan_move(state, [broker_id for broker_id in state.replicas if broker_id not in state.adding], 0)


def _is_copying(state: PartitionState, broker_id: int) -> bool:
    """Return whether a replica is being added and has not caught up."""
    return broker_id in state.adding and broker_id not in {entry.broker_id for entry in state.members}
