"""Progress of the followers of a leader, in one leader epoch (H5).

Owned by a `Leadership`. "Caught up" is as in Kafka: the lag of a follower is the time since it last had all records
that the leader had at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.wire.ids import Offset
from headrace_server.partition_state import Replica


@dataclass(slots=True)
class Follower:
    """Progress of one follower in one session. Times are monotonic milliseconds."""

    replica: Replica
    offset: Offset  # its log end, verified against this log
    durable_offset: Offset  # it has all below on stable storage
    fetched_ms: int
    caught_up_ms: int  # when it last had acknowledged everything
    log_end_at_fetch: Offset  # this log's end at its last fetch
    log_start_offset: int  # its durable log start
    join_after_ms: int = 0  # earliest next proposal to add it, after one was rejected

    def acknowledged(self, flushed_only: bool) -> Offset:
        """Return the offset that counts for the high watermark."""
        return self.durable_offset if flushed_only else self.offset


class FollowerTable:
    """Followers that have fetched in this epoch, by broker id."""

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self._followers: dict[int, Follower] = {}

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._followers.values())

    def get(self, replica: Replica) -> Follower | None:
        """Return the follower in exactly this session, or `None`."""
        found = self._followers.get(replica.broker_id)
        return found if found is not None and found.replica == replica else None

    def last_session(self, broker_id: int) -> int:
        """Return the newest broker epoch of `broker_id` that has fetched, or `-1` if none has."""
        found = self._followers.get(broker_id)
        return -1 if found is None else found.replica.broker_epoch

    def note(
        self,
        replica: Replica,
        offset: Offset,
        durable_offset: Offset,
        at_ms: int,
        *,
        log_start_offset: int,
        log_end_offset: Offset,
        flushed_only: bool,
    ) -> Follower:
        """Record a verified fetch; `log_start_offset` is the follower's, `log_end_offset` this log's."""
        known = self._followers.get(replica.broker_id)
        if known is None or known.replica != replica:
            since_ms = self.started_ms if known is None else known.caught_up_ms
            known = Follower(replica, offset, durable_offset, at_ms, since_ms, log_end_offset, log_start_offset)
            self._followers[replica.broker_id] = known
        known.offset, known.durable_offset, known.log_start_offset = offset, durable_offset, log_start_offset
        acknowledged = known.acknowledged(flushed_only)
        if acknowledged >= log_end_offset:
            known.caught_up_ms = at_ms
        elif acknowledged >= known.log_end_at_fetch:
            known.caught_up_ms = max(known.caught_up_ms, known.fetched_ms)
        known.fetched_ms, known.log_end_at_fetch = at_ms, log_end_offset
        return known

    def note_heard(self, heard_ms: Mapping[Replica, int], *, log_end_offset: Offset, flushed_only: bool) -> None:
        """Apply heartbeats: a follower that has all records stays caught up while it sends them."""
        for follower in self._followers.values():
            at_ms = heard_ms.get(follower.replica, -1)
            if at_ms > follower.caught_up_ms and follower.acknowledged(flushed_only) >= log_end_offset:
                follower.caught_up_ms = at_ms

    def forget(self, broker_id: int) -> None:
        """Forget the progress of a broker until it fetches again."""
        self._followers.pop(broker_id, None)

    def behind(self, members: Iterable[Replica], at_ms: int, lag_max_ms: int) -> list[Replica]:
        """Return the `members` that have not been caught up for more than `lag_max_ms`.

        For a broker that has never fetched the time counts from the start of the epoch, otherwise across its sessions.
        """
        late = []
        for member in members:
            follower = self._followers.get(member.broker_id)
            since_ms = self.started_ms if follower is None else follower.caught_up_ms
            if at_ms - since_ms > lag_max_ms:
                late.append(member)
        return late
