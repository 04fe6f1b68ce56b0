"""Elections requested by an administrator: pure functions that return the next value of the key or raise an error.

Used by the coordinator that serves the request. The controller's own elections are `election.elect`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.wire.errors import InvalidRequestError, LeaderNotAvailableError, UnknownBrokerError
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Compare, CreateRevisionIs
from headrace_server.partition_state import PartitionState, Replica, ask_hand_over

from headrace_coordinator.core.election import RegisteredBroker, elect_uncleanly, electable, is_session, preferred


def elect_preferred(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Return the key with a request that the leader hand over to the preferred in-sync replica.

    `None` means that the preferred replica leads, or that the hand-over is already requested.

    Raises:
        LeaderNotAvailableError: If there is no leader; the controller elects one as soon as it can.
    """
    if state.leader is None or not is_session(state.leader, live):
        raise LeaderNotAvailableError(
            "the partition has no leader to hand over",
            action="Wait for the controller to elect one, or elect uncleanly if no replica in sync comes back.",
        )
    leader = preferred(state, [entry for entry in state.in_sync if is_session(entry, live)], live)
    return None if leader == state.leader or state.successors == (leader,) else ask_hand_over(state, (leader,))


def elect_unclean(state: PartitionState, live: Mapping[int, RegisteredBroker], broker_id: int | None) -> PartitionState:
    """Return the key with a leader that may lack committed records (H21); with `broker_id` `None`, any live replica.

    Raises:
        InvalidRequestError: If a replica with all records is registered, or `broker_id` is no replica.
        UnknownBrokerError: If `broker_id` is not registered.
        LeaderNotAvailableError: If no replica is registered.
    """
    complete = electable(state, live)
    if complete:
        raise InvalidRequestError(
            f"{_brokers(complete)} {'holds' if len(complete) == 1 else 'hold'} every committed record and "
            "can lead: an unclean election would lose records needlessly",
            action="Elect the preferred leader, or wait a moment for the controller.",
        )
    if broker_id is not None and broker_id not in state.replicas:
        raise InvalidRequestError(
            f"broker {broker_id} holds no replica of the partition",
            action=f"Name one of the replicas: {', '.join(map(str, state.replicas))}.",
        )
    if broker_id is not None and broker_id not in live:
        raise UnknownBrokerError(f"broker {broker_id} is not registered", action="Start it, or name another replica.")
    after = elect_uncleanly(state, live, broker_id)
    if after is None:
        raise LeaderNotAvailableError(
            f"none of the replicas {', '.join(map(str, state.replicas))} is registered",
            action="Start at least one of these brokers.",
        )
    return after


def nobody_returned(
    keyspace: Keyspace, state: PartitionState, live: Mapping[int, RegisteredBroker]
) -> tuple[Compare, ...]:
    """Return compares that hold while no in-sync or eligible replica has registered since `live` was read."""
    return tuple(
        CreateRevisionIs(
            keyspace.broker(entry.broker_id), live[entry.broker_id].broker_epoch if entry.broker_id in live else 0
        )
        for entry in state.members
    )


def _brokers(entries: Sequence[Replica]) -> str:
    named = ", ".join(str(entry.broker_id) for entry in entries)
    return f"broker {named}" if len(entries) == 1 else f"brokers {named}"
