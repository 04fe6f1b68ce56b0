"""Positions that readers without a group report, so that they have a lag, too: a key on a lease each.

For observation only: nothing is decided on them. Belongs to the event loop.
"""

from __future__ import annotations

from headrace.wire.errors import ConflictError, MetastoreUnavailableError, Outcome
from headrace_server.clock import Clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.api import LeaseNotFoundError, Metastore, MetastoreRolledBackError, ModRevisionIs, Put

from headrace_coordinator.runtime.group_view import GroupView


class ReportedPositions:
    """Writes `positions/{reader_id}`."""

    def __init__(self, metastore: Metastore, view: GroupView, clock: Clock) -> None:
        self._metastore = metastore
        self._view = view
        self._clock = clock

    async def report(self, reader_id: str, positions: metadata_pb2.ReportedPositions, expire_ms: int) -> int:
        """Store a reader's positions, until `expire_ms` after its last report; returns etcd's revision of it.

        Raises:
            ConflictError: there is a group of that name.
            MetastoreUnavailableError: nothing may have been stored; the next report makes it good.
        """
        if reader_id in self._view.groups:
            raise _is_a_group(reader_id)
        positions.reported_ms = self._clock.now_ms()
        key = self._view.keyspace.position(reader_id)
        present = self._view.positions.get(reader_id)
        try:
            if present is not None and present.lease_id and await self._metastore.renew_lease(present.lease_id):
                lease_id = present.lease_id
            else:
                lease_id = (await self._metastore.grant_lease(expire_ms)).lease_id
            absent_group = ModRevisionIs(self._view.keyspace.group(reader_id), 0)
            stored = await self._metastore.txn([absent_group], [Put(key, positions.SerializeToString(), lease_id)])
        except MetastoreRolledBackError:
            raise
        except (TimeoutError, MetastoreUnavailableError, LeaseNotFoundError) as error:
            raise MetastoreUnavailableError(
                f"the positions were not stored: {error}", outcome=Outcome.UNKNOWN
            ) from error
        if not stored.succeeded:
            raise _is_a_group(reader_id)
        return stored.revision


def _is_a_group(reader_id: str) -> ConflictError:
    return ConflictError(f"{reader_id!r} is a consumer group", action="Report under another name.")
