"""Leader election of partitions (PROTOCOL section 1.2, Election): pure functions of partition and broker keys.

Level-triggered: the controller evaluates every partition whenever the view has changed and writes the result,
comparing the key's mod_revision, its own controller epoch and the elected broker's registration. `elect` only chooses
from the in-sync set and eligible leaders (I3, H20); the one exception, a sole replica, marks the state `unclean`
(docs/decisions/0011-use-compares-for-unclean-elections.md). Only an administrator requests `elect_uncleanly` (H21).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, change


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """Registered broker, from `brokers/{broker_id}` and `drained_brokers/{broker_id}`."""

    broker_epoch: int
    """Revision of the registration (create_revision of the key)."""
    resumes: int = 0
    """Oldest broker epoch since which the data directory is the same; `0` means that it is new."""
    clean: bool = False
    """All written data is present: the previous shutdown was clean, or only the process ended."""
    storage_since: int = 0
    """As `resumes`, but also for a directory whose data may be incomplete; `0` means that it is new."""
    stopping: bool = False
    """The broker is shutting down: it is the last candidate for leadership and leaves in-sync sets (KIP-841)."""
    drained: bool = False
    """An administrator drained the broker: it is among the last candidates for leadership but stays in sync."""
    data_center: str = ""
    """Data center that it names; empty if none."""
    takes_no_replicas: str = ""
    """Why it accepts no new replicas; empty if it accepts them."""
    suspected_by: int = 0
    """Number of registered brokers that miss its replica fetches; used only to choose among equal candidates."""


def sessions_of(
    brokers: Iterable[tuple[int, int, metadata_pb2.BrokerLive]], drained: Iterable[int]
) -> dict[int, RegisteredBroker]:
    """Return registrations (broker id, broker epoch, value) as sessions by broker id, ascending.

    `drained` are the brokers that an administrator drained. A failure report counts while its reporter is registered.
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
            data_center=live.data_center,
            takes_no_replicas=live.takes_no_replicas,
            stopping=live.draining,
            drained=broker_id in out_of_service,
            suspected_by=suspected_by.get(broker_id, 0),
        )
        for broker_id, broker_epoch, live in registered
    }


def elect(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> PartitionState | None:
    """Return the next value of a partition's key if its leader's session ended, or `None` if no change is needed.

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
    """Elect a replica that may lack committed records, on an administrator's request (H21); `None` if there is none.

    `broker_id` is the requested leader; `None` means the preferred one of the live replicas with the oldest fence: a
    fence is set when a replica is added and when its log is corrupt. The caller has checked that no replica is
    `electable`. The other replicas leave both sets: records that only they hold are lost, and they truncate their
    logs to the new leader's before they join again.
    """
    assert not electable(state, live), "who can be elected cleanly is"
    wanted = state.replicas if broker_id is None else (broker_id,)
    candidates = [
        Replica(member, live[member].broker_epoch) for member in state.replicas if member in wanted and member in live
    ]
    if not candidates:
        return None
    fenced = {fence.broker_id: fence.partition_epoch for fence in state.fetch_fences}
    oldest = min(fenced.get(entry.broker_id, 0) for entry in candidates)
    leader = preferred(state, [entry for entry in candidates if fenced.get(entry.broker_id, 0) == oldest], live)
    return change(state, leader=leader, in_sync=[leader], doubtful=state.replicas, unclean=True)


def electable(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> list[Replica]:
    """Return the registered replicas that have every committed record, in their current sessions, with the leader."""
    entries, _ = carry_over(state.members, live, durable=state.durable)
    return [entry for entry in entries if is_session(entry, live)]


def carry_over(
    entries: Sequence[Replica], live: Mapping[int, RegisteredBroker], *, durable: bool
) -> tuple[list[Replica], list[int]]:
    """Move the entries of brokers that came back with all their data to the new session, and drop those without.

    With `durable` all committed records of members are on stable storage, so that the same directory is sufficient: a
    broker whose recovery finds records missing removes itself from the key before it registers.
    Return the entries that still count, dead ones included, and the ids of those dropped (H16, H17).
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
    """Return whether the entry names the broker's current session."""
    session = live.get(entry.broker_id)
    return session is not None and session.broker_epoch == entry.broker_epoch


def reluctance(session: RegisteredBroker) -> int:
    """Return the reluctance of a broker to lead: 0 none, 1 drained, 2 shutting down."""
    return 2 if session.stopping else int(session.drained)


def preferred(state: PartitionState, candidates: Sequence[Replica], live: Mapping[int, RegisteredBroker]) -> Replica:
    """Return the first of `candidates` (at least one) in the order of `by_preference`."""
    return by_preference(state, candidates, live)[0]


def by_preference(
    state: PartitionState, candidates: Sequence[Replica], live: Mapping[int, RegisteredBroker]
) -> tuple[Replica, ...]:
    """Return `candidates`, all live, ordered by reluctance, then failure reports, then replica order."""
    rank = {broker_id: index for index, broker_id in enumerate(state.replicas)}

    def key(entry: Replica) -> tuple[int, int, int]:
        session = live[entry.broker_id]
        return reluctance(session), session.suspected_by, rank[entry.broker_id]

    return tuple(sorted(candidates, key=key))


def _sole_replica(state: PartitionState, live: Mapping[int, RegisteredBroker]) -> Replica | None:
    """Return the only replica if it is back with its directory but its log may lack records at the end."""
    entries = state.members
    if len(state.replicas) != 1 or len(entries) != 1:
        return None
    session = live.get(entries[0].broker_id)
    if session is None or not _is_same_storage(entries[0], session):
        return None
    return Replica(entries[0].broker_id, session.broker_epoch)


def _is_continued(entry: Replica, session: RegisteredBroker) -> bool:
    """Return whether `session`, if `clean`, has all data that the entry's session wrote."""
    return 0 < session.resumes <= entry.broker_epoch < session.broker_epoch


def _is_same_storage(entry: Replica, session: RegisteredBroker) -> bool:
    """Return whether `session` has the data directory of the entry's session."""
    return 0 < session.storage_since <= entry.broker_epoch < session.broker_epoch
