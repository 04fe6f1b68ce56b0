"""Who leads a partition: PROTOCOL section 1.2, Election, as a pure function of the partition's key and the live keys.

Level-triggered: the controller calls it for every partition whenever the view has changed and writes what it returns,
comparing the key's mod_revision, its own controller epoch and the elected broker's registration. Never chooses outside
in-sync set and eligible leaders (I3, H20); the one exception, a sole replica, marks the state `unclean`
(docs/decisions/0020-a-sole-replica-is-elected.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_server.partition_state import PartitionState, Replica, change


@dataclass(frozen=True, slots=True)
class Session:
    """A broker that is registered now: what an election needs of `live/{broker_id}`."""

    broker_epoch: int
    """The revision of the registration (create_revision of the key)."""
    resumes: int = 0
    """The oldest broker epoch since which the data directory is the same; 0: none, it is new."""
    clean: bool = False
    """Nothing that was promised is missing: recovery found all that was flushed, or the stop before was clean."""
    draining: bool = False
    """The broker is about to leave: it takes leadership only where nobody else can."""


def elect(state: PartitionState, live: Mapping[int, Session]) -> PartitionState | None:
    """Say what the partition's key is to become; None: it is right as it is.

    `live` holds the registered brokers by id. Raises nothing; I11 is asserted on the result.
    """
    if state.leader is not None and _is_session(state.leader, live):
        return None
    in_sync, doubtful = _carry_over(state.in_sync, live)
    eligible, _ = _carry_over(state.eligible_leaders, live)
    live_in_sync = [entry for entry in in_sync if _is_session(entry, live)]
    live_eligible = [entry for entry in eligible if _is_session(entry, live)]
    if live_in_sync:
        leader = _preferred(state, live_in_sync, live)
        return change(
            state, leader=leader, in_sync=live_in_sync, doubtful=doubtful, eligible_leaders=eligible, unclean=False
        )
    if live_eligible:
        leader = _preferred(state, live_eligible, live)
        return change(
            state, leader=leader, in_sync=[leader], doubtful=doubtful, eligible_leaders=eligible, unclean=False
        )
    sole = _sole_replica(state, live)
    if sole is not None:
        return change(state, leader=sole, in_sync=[sole], unclean=True)
    if state.leader is None and tuple(in_sync) == state.in_sync and tuple(eligible) == state.eligible_leaders:
        return None
    return change(state, leader=None, in_sync=in_sync, doubtful=doubtful, eligible_leaders=eligible)


def _carry_over(entries: tuple[Replica, ...], live: Mapping[int, Session]) -> tuple[list[Replica], list[int]]:
    """Rewrite the entries of brokers that came back with all their data to their new session, drop those without.

    Returns the entries that still count, dead ones included, and the ids of those dropped.
    """
    kept: list[Replica] = []
    dropped: list[int] = []
    for entry in entries:
        session = live.get(entry.broker_id)
        if session is None or session.broker_epoch == entry.broker_epoch:
            kept.append(entry)
        elif session.clean and _is_continued(entry, session):
            kept.append(Replica(entry.broker_id, session.broker_epoch))
        else:
            dropped.append(entry.broker_id)
    return kept, dropped


def _sole_replica(state: PartitionState, live: Mapping[int, Session]) -> Replica | None:
    """Find the only replica, back with its directory but without the promise that nothing is missing from its end."""
    entries = state.in_sync + state.eligible_leaders
    if len(state.replicas) != 1 or len(entries) != 1:
        return None
    session = live.get(entries[0].broker_id)
    if session is None or not _is_continued(entries[0], session):
        return None
    return Replica(entries[0].broker_id, session.broker_epoch)


def _is_continued(entry: Replica, session: Session) -> bool:
    """Say whether the session has the data directory that the entry's session had."""
    return 0 < session.resumes <= entry.broker_epoch < session.broker_epoch


def _is_session(entry: Replica, live: Mapping[int, Session]) -> bool:
    session = live.get(entry.broker_id)
    return session is not None and session.broker_epoch == entry.broker_epoch


def _preferred(state: PartitionState, candidates: list[Replica], live: Mapping[int, Session]) -> Replica:
    """Choose the first in replica order, one that is draining only where all are."""
    rank = {broker_id: index for index, broker_id in enumerate(state.replicas)}
    return min(candidates, key=lambda entry: (live[entry.broker_id].draining, rank[entry.broker_id]))
