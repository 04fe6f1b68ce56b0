"""Leader election of partitions: PROTOCOL section 1.2, Election, as pure functions of the partition's key and the live
keys.

Level-triggered: the controller asks for every partition whenever the view has changed and writes what is returned,
comparing the key's mod_revision, its own controller epoch and the elected broker's registration. `elect` never chooses
outside in-sync set and eligible leaders (I3, H20); the one exception, a sole replica, marks the state `unclean`
(docs/decisions/0011-use-compares-for-unclean-elections.md). `elect_uncleanly` is an administrator's act alone (H21).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, change


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker that is registered now: what the controller needs of `brokers/{broker_id}` and
    `drained_brokers/{broker_id}`.
    """

    broker_epoch: int
    """The revision of the registration (create_revision of the key)."""
    resumes: int = 0
    """The oldest broker epoch since which the data directory is the same; 0: none, it is new."""
    clean: bool = False
    """All that was written is there: the stop before was clean, or only the process ended."""
    storage_since: int = 0
    """The oldest broker epoch since which the data directory is the same, whole or not; 0: it is new."""
    stopping: bool = False
    """The broker is about to end: it leads only as the last candidate, and leaves in-sync sets (KIP-841)."""
    drained: bool = False
    """An administrator took it out of service: it leads only as the last candidate, and stays in sync."""
    suspected_by: int = 0
    """How many registered brokers miss its replica fetches: asked only to prefer one among equals."""


def sessions_of(
    brokers: Iterable[tuple[int, int, metadata_pb2.BrokerLive]], drained: Iterable[int]
) -> dict[int, RegisteredBroker]:
    """Return the sessions by broker id, ascending, of registrations (broker id, broker epoch, value).

    `drained` are the brokers that an administrator took out of service. A failure report counts while its reporter is
    registered.
    """
    registered = sorted(brokers, key=lambda broker: broker[0])
    out_of_service = frozenset(drained)
    suspected_by: dict[int, int] = {}
    for broker_id, _, live in registered:
        for suspected in set(live.suspected_brokers) - {broker_id}:
            suspected_by[suspected] = suspected_by.get(suspected, 0) + 1
    return {
        broker_id: RegisteredBroker(
            broker_epoch,
            live.resumes,
            live.clean,
            live.storage_since,
            stopping=live.draining,
            drained=broker_id in out_of_service,
            suspected_by=suspected_by.get(broker_id, 0),
        )
        for broker_id, broker_epoch, live in registered
    }


def elect(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Return the next value of a partition's key if its leader's session is over; `None`: it needs no change.

    `live` holds the registered brokers by id. Raises nothing; I11 is asserted on the result.
    """
    if state.leader is not None and is_session(state.leader, live):
        return None
    in_sync, doubtful = carry_over(state.in_sync, live, durable=state.durable)
    eligible, _ = carry_over(state.eligible_leaders, live, durable=state.durable)
    live_in_sync = [entry for entry in in_sync if is_session(entry, live)]
    live_eligible = [entry for entry in eligible if is_session(entry, live)]
    if live_in_sync:
        leader = preferred(state, live_in_sync, live)
        return change(
            state, leader=leader, in_sync=live_in_sync, doubtful=doubtful, eligible_leaders=eligible, unclean=False
        )
    if live_eligible:
        leader = preferred(state, live_eligible, live)
        return change(
            state, leader=leader, in_sync=[leader], doubtful=doubtful, eligible_leaders=eligible, unclean=False
        )
    sole = _sole_replica(state, live)
    if sole is not None:
        return change(state, leader=sole, in_sync=[sole], unclean=True)
    if state.leader is None and tuple(in_sync) == state.in_sync and tuple(eligible) == state.eligible_leaders:
        return None
    return change(state, leader=None, in_sync=in_sync, doubtful=doubtful, eligible_leaders=eligible)


def elect_uncleanly(
    state: PartitionState, live: Mapping[int, RegisteredBroker], broker_id: int | None = None
) -> PartitionState | None:
    """Elect a replica that may lack committed records, on an administrator's request (H21); `None`: no candidate.

    `broker_id` is the requested leader; `None`: the preferred live replica. Only if no replica is `electable`: the
    caller has asked. The other replicas lose their places in both sets: what only they hold is given up, and they cut
    their logs to the new leader's before they join again.
    """
    assert not electable(state, live), "who can be elected cleanly is"
    wanted = state.replicas if broker_id is None else (broker_id,)
    candidates = [
        Replica(member, live[member].broker_epoch) for member in state.replicas if member in wanted and member in live
    ]
    if not candidates:
        return None
    leader = preferred(state, candidates, live)
    return change(state, leader=leader, in_sync=[leader], doubtful=state.replicas, unclean=True)


def electable(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> list[Replica]:
    """Return the registered replicas that hold every committed record, in their present sessions, with the leader."""
    entries, _ = carry_over(state.members, live, durable=state.durable)
    return [entry for entry in entries if is_session(entry, live)]


def carry_over(
    entries: Sequence[Replica], live: Mapping[int, RegisteredBroker], *, durable: bool
) -> tuple[list[Replica], list[int]]:
    """Rewrite the entries of brokers that came back with all their data to their new session, drop those without.

    `durable`: the partition's members have all that is committed on stable storage, so that the same directory is
    enough: what recovery finds missing there takes itself out of the key before it registers.
    Returns the entries that still count, dead ones included, and the ids of those dropped (H16, H17).
    """
    kept: list[Replica] = []
    dropped: list[int] = []
    for entry in entries:
        session = live.get(entry.broker_id)
        if session is None or session.broker_epoch == entry.broker_epoch:
            kept.append(entry)
        elif (session.clean and _is_continued(entry, session)) or (durable and _is_same_storage(entry, session)):
            kept.append(Replica(entry.broker_id, session.broker_epoch))
        else:
            dropped.append(entry.broker_id)
    return kept, dropped


def is_session(entry: Replica, live: Mapping[int, RegisteredBroker]) -> bool:
    """Return whether the entry names the broker's present session."""
    session = live.get(entry.broker_id)
    return session is not None and session.broker_epoch == entry.broker_epoch


def reluctance(session: RegisteredBroker) -> int:
    """Return how reluctantly a broker should lead: 0 not at all, 1 taken out of service, 2 about to end."""
    return 2 if session.stopping else int(session.drained)


def preferred(state: PartitionState, candidates: Sequence[Replica], live: Mapping[int, RegisteredBroker]) -> Replica:
    """Choose one of several equally entitled ones, at least one: the first `by_preference`."""
    return by_preference(state, candidates, live)[0]


def by_preference(
    state: PartitionState, candidates: Sequence[Replica], live: Mapping[int, RegisteredBroker]
) -> tuple[Replica, ...]:
    """Order equally entitled ones, all live: by reluctance, then by failure reports, then in replica order."""
    rank = {broker_id: index for index, broker_id in enumerate(state.replicas)}

    def key(entry: Replica) -> tuple[int, int, int]:
        session = live[entry.broker_id]
        return reluctance(session), session.suspected_by, rank[entry.broker_id]

    return tuple(sorted(candidates, key=key))


def _sole_replica(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> Replica | None:
    """Find the only replica, back with its directory but without the promise that nothing is missing from its end."""
    entries = state.members
    if len(state.replicas) != 1 or len(entries) != 1:
        return None
    session = live.get(entries[0].broker_id)
    if session is None or not _is_same_storage(entries[0], session):
        return None
    return Replica(entries[0].broker_id, session.broker_epoch)


def _is_continued(entry: Replica, session: RegisteredBroker) -> bool:
    """Return whether all that the entry's session wrote is present, where the session is `clean`."""
    return 0 < session.resumes <= entry.broker_epoch < session.broker_epoch


def _is_same_storage(entry: Replica, session: RegisteredBroker) -> bool:
    """Return whether the session has the data directory that the entry's session had."""
    return 0 < session.storage_since <= entry.broker_epoch < session.broker_epoch
