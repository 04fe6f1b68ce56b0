"""Writes of rows: one batch each, appended by the leader if the row has the version that the caller expects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from headrace.partition.batch_checks import AppendResult
from headrace.partition.row_writes import RowWrite
from headrace.wire.errors import Outcome, TimedOutError
from headrace.wire.table_keys import ABSENT
from headrace_server.caller_turns import next_turn

from headrace_broker.runtime.table import PartitionTable

if TYPE_CHECKING:
    from headrace_broker.runtime.partition import Partition


class _LogMovedError(Exception):
    """The log has records that the decision did not see."""


class RowWritten(NamedTuple):
    """Result of a `RowWrite`."""

    applied: bool
    version: int
    """Offset of the last record; if not applied, version of the row."""
    records: int
    end_offset: int
    """What is committed below it makes the result final, also for what it has seen but not written .."""
    leader_epoch: int
    """.. in this epoch."""


class TableWrites:
    """Writes to the table of a partition. Belongs to the event loop."""

    def __init__(self, partition: Partition, table: PartitionTable) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._table = table

    async def write(self, write: RowWrite, seconds: float) -> RowWritten:
        """Apply a write and wait for its commit.

        Raises:
            HeadraceError: As a Produce with `acks=all`.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                written = await self._try(write, deadline)
            except _LogMovedError:
                if asyncio.get_running_loop().time() > deadline:
                    raise TimedOutError(
                        "other records were appended each time before the write could be decided",
                        outcome=Outcome.NOT_APPLIED,
                        retriable=True,
                        action="Try again.",
                    ) from None
                await next_turn()  # What moves the log may need the event loop.
                continue
            await self._await_commit(written, deadline)
            return written

    def _find_repeated(self, write: RowWrite) -> RowWritten | None:
        """Return the result of the same write, if it has been applied."""
        if write.producer[0] < 0:
            return None
        found = self._replica.producers.find(*write.producer)
        if found is None:
            return None
        end_offset = found.base_offset + found.record_count
        return RowWritten(True, end_offset - 1, found.record_count, end_offset, self._replica.leader_epoch)

    async def _try(self, write: RowWrite, deadline: float) -> RowWritten:
        leadership = self._replica.check_leading(-1)
        decided_at: tuple[int, int] | None = None
        if write.needs_state:
            leadership.check_latest()
            await self._table.read_uncommitted(deadline - asyncio.get_running_loop().time())
            repeated = self._find_repeated(write)
            if repeated is not None:  # It would be decided by what it has written itself.
                return repeated
            if not self._table.knows_log_end:
                raise _LogMovedError
            decided_at = self._log_end
            version = self._table.version_now(write.row)
            if write.if_version is not None and version != write.if_version:
                return RowWritten(False, version, 0, *decided_at)
            if write.deletes_row:
                row = self._table.row_now(write.row).columns
                if not row:
                    return RowWritten(True, ABSENT, 0, *decided_at)
                write = write._replace(columns=dict.fromkeys(row))
        result = await self._append(write.encode(self._partition.context.now_ms()), decided_at)
        if result.error is not None:
            raise result.error
        return RowWritten(True, result.end_offset - 1, len(write.columns), result.end_offset, result.leader_epoch)

    @property
    def _log_end(self) -> tuple[int, int]:
        return int(self._replica.log_end_offset), self._replica.leader_epoch

    async def _append(self, batch: bytes, decided_at: tuple[int, int] | None) -> AppendResult:
        """Append a batch, if the log still ends where the decision to write it was made."""

        def guard() -> None:
            if decided_at not in (None, self._log_end):
                raise _LogMovedError

        appender = self._partition.appender
        guard()
        result = appender.append_now([batch], -1, committed=True)
        return await appender.append([batch], -1, committed=True, guard=guard) if result is None else result

    async def _await_commit(self, written: RowWritten, deadline: float) -> None:
        """Wait until what the result tells is committed: also what a refused write has seen."""
        waits = self._partition.acknowledgements
        wait = waits.of(written.end_offset, written.leader_epoch)
        if wait is None:
            return
        error = await waits.settle(*wait, deadline - asyncio.get_running_loop().time())
        if error is None:
            return
        if not written.applied:
            error.outcome = Outcome.NOT_APPLIED
        raise error
