"""Asyncio `Table`: rows by their keys.

async with headrace.aio.Table("users") as users:
    await users.put("u17", {"name": "Ada", "plan": "pro"})
    row = await users.get("u17")
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from headrace.client.base.arguments import listed
from headrace.client.base.config import TableConfig, build, client_repr
from headrace.client.base.errors import ConfigError
from headrace.client.base.forking import ForkGuard
from headrace.client.base.settings_types import TableSettings
from headrace.client.base.unclosed import warn_unclosed
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.client.net.transport import open_connections_async
from headrace.client.table.bulk_puts_async import AsyncBulkPuts
from headrace.client.table.previews import preview_html_async
from headrace.client.table.purges import PURGE_S, PurgedReplica, PurgeOperations
from headrace.client.table.row_writes import Versions, checked_ttl_ms
from headrace.client.table.rows import Row, TableCount, TablePartition, column_slice, key_of
from headrace.client.table.table_calls_async import AsyncTableCalls
from headrace.client.table.table_operations import (
    KEYS_AT_ONCE,
    ReadFrom,
    SeenRow,
    TableOperations,
    key_parts,
    scan_range,
)
from headrace.display.progress import progress_bar
from headrace.v1.tables_pb2 import ColumnSlice
from headrace.wire.errors import OffsetNotAvailableError, TimedOutError, UnknownTopicIdError

SCANNED_PARTITIONS = 4
"""Partitions of which a scan has a page, or asks for one."""
ARROW_PARTITIONS = 8
"""The same of a scan whose partitions take turns."""
WATCH_S = 5.0
"""Time of one wait for a write to the partition of a watched row."""


class AsyncTable:
    """Reads and writes the rows of one table, a topic with `table=yes`.

    A row has a key, text or bytes, and columns with names and values. Values are text unless `value_serializer` and
    `value_deserializer` say otherwise. Several tasks may use one object; every method raises the typed errors of
    `headrace`, and accepts `timeout` in seconds for all tries together (default: request_timeout_ms).

    `consistency="leader"`, the default, reads what has been acknowledged before (linearizable). "replica" reads from
    any in-sync replica what is committed as far as that knows, `row.as_of_offset`; `min_offset=version + 1` then waits
    for one's own write.
    """

    def __init__(self, name: str, **settings: Unpack[TableSettings]) -> None:
        """Create a client with the settings of `TableConfig`. Connects on first use.

        Raises:
            ConfigError: For an unknown setting or a value out of range.
        """
        self._name = name
        self._config = config = build(TableConfig, settings)
        self._connections = open_connections_async("Table", config)
        self._operations = TableOperations(name, config, BootstrapClient(config))
        self._purges = PurgeOperations(name, config, BootstrapClient(config))
        self._calls = AsyncTableCalls(self._operations, self._connections.run_step)
        self._bulk = AsyncBulkPuts(name, config, self._operations, self._calls)
        self._fork = ForkGuard(self._after_fork)

    async def __aenter__(self) -> "AsyncTable":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return client_repr("Table", self._config, f"name={self._name}")

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows of it; see `headrace.client.table.previews`."""
        return preview_html_async(self, self._name)

    def __del__(self) -> None:
        connections = getattr(self, "_connections", None)  # Not set after wrong settings.
        if connections is not None and connections.is_open and not self._calls.is_forked:
            warn_unclosed(self)

    async def close(self) -> None:
        """Close the connections; calls in flight fail. Calling it again does nothing."""
        if not self._calls.is_forked:
            await self._bulk.close()
            await self._connections.close()

    # --- reads ---

    async def get(
        self,
        key: str | bytes,
        columns: Sequence[str] | None = None,
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        consistency: str = "leader",
        min_offset: int = 0,
        timeout: float | None = None,
    ) -> Row | None:
        """Return a row, or `None` if it does not exist; `columns`, or `start`, `end` and `limit` choose its columns.

        Args:
            key: the row's key.
            columns: names of columns; those that the row does not have are left out.
            start: name of the first column.
            end: name before which the last column is.
            limit: maximum number of columns; `next_column` of the row says where to continue.
            consistency: "leader" or "replica", see the class.
            min_offset: what is committed below this offset is in the answer; a version, plus one.
            timeout: seconds.
        """
        wanted = column_slice(columns, start, end, limit)
        [row] = await self._get_all([key], wanted, ReadFrom(consistency, min_offset), timeout)
        return row

    async def get_many(
        self,
        keys: Iterable[str | bytes],
        columns: Sequence[str] | None = None,
        *,
        consistency: str = "leader",
        min_offset: int = 0,
        timeout: float | None = None,
    ) -> list[Row | None]:
        """Return rows in the order of `keys`, `None` for one that does not exist. Each is read by itself.

        The partitions are asked side by side.
        """
        wanted = column_slice(columns, None, None, None)
        return await self._get_all(keys, wanted, ReadFrom(consistency, min_offset), timeout)

    async def _get_all(
        self, keys: Iterable[str | bytes], columns: ColumnSlice, wanted: ReadFrom, timeout: float | None
    ) -> list[Row | None]:
        rows, operations = list(map(key_of, listed("keys", keys))), self._operations
        deadline = operations.deadline(timeout)
        groups = await self._calls.run(operations.group_keys(rows, deadline))
        reads = [
            operations.get_rows(number, part, columns, wanted, deadline)
            for number, group in groups.items()
            for part in key_parts(group, KEYS_AT_ONCE)
        ]
        found: dict[bytes, Row | None] = {}
        for part in await self._calls.run_all(reads):
            found.update(part)
        return [found[key] for key in rows]

    async def scan(
        self,
        *,
        prefix: str | bytes = b"",
        start: str | bytes = b"",
        end: str | bytes | None = None,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        page_rows: int = 500,
        consistency: str = "leader",
        timeout: float | None = None,
    ) -> AsyncGenerator[Row, None]:
        """Yield rows, partition after partition, in the order of their keys within each.

        Pages are read ahead: the next one of a partition, and the first ones of the partitions that follow. Each page
        has what was committed when it was read, so that rows written meanwhile may be there or not.

        Args:
            prefix: only rows whose keys begin with it.
            start: key of the first row.
            end: key before which the last row is.
            columns: names of columns; a row without any of them is yielded empty.
            partitions: partitions to read; `None` means all.
            page_rows: rows of one page, 1 to 1,000.
            consistency: "leader" or "replica", see the class.
            timeout: seconds, for each page.
        """
        wanted = scan_range(prefix, start, end, columns, page_rows)
        pages = self._calls.pages(wanted, partitions, SCANNED_PARTITIONS, consistency, timeout)
        try:
            async for page in pages:
                for row in self._operations.rows_of(page):
                    yield row
        finally:
            await pages.aclose()

    async def scan_arrow(
        self,
        *,
        prefix: str | bytes = b"",
        start: str | bytes = b"",
        end: str | bytes | None = None,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        key_column: str = "key",
        version_column: str | None = None,
        page_rows: int = 1_000,
        consistency: str = "leader",
        timeout: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield rows as batches (`pyarrow.RecordBatch`), a page each: the way to read a large table.

        The partitions take turns, and are read side by side; rows of one partition are in the order of their keys. A
        batch has the key as binary, and each column as text, or binary with `value_deserializer="bytes"`; it is null
        where a row does not have it. Memory is for some pages, whatever the size of the table.

        Args:
            prefix: see `scan`.
            start: see `scan`.
            end: see `scan`.
            columns: names of the columns of every batch; `None` for those that the rows of each batch have.
            partitions: partitions to read; `None` means all.
            key_column: name of the column for the key.
            version_column: name of a column for the version of the row; `None` for none.
            page_rows: rows of one batch, 1 to 1,000.
            consistency: "leader" or "replica", see the class.
            timeout: seconds, for each page.

        Raises:
            SerializationError: If a value is no text.
        """
        from headrace.client.table.arrow_rows import ArrowRows

        form = ArrowRows(self._config, columns, key_column, version_column)
        wanted = scan_range(prefix, start, end, columns, page_rows)
        pages = self._calls.pages(wanted, partitions, ARROW_PARTITIONS, consistency, timeout, takes_turns=True)
        try:
            async for page in pages:
                if page.rows:
                    yield form.batch_of(page.rows)
        finally:
            await pages.aclose()

    async def to_arrow(
        self,
        *,
        prefix: str | bytes = b"",
        columns: Sequence[str] | None = None,
        key_column: str = "key",
        version_column: str | None = None,
        consistency: str = "leader",
        timeout: float | None = None,
    ) -> Any:
        """Return rows as a `pyarrow.Table`, of which each batch is a page of a partition; see `scan_arrow`."""
        from headrace.client.table.arrow_rows import ArrowRows

        form = ArrowRows(self._config, columns, key_column, version_column)
        with progress_bar(f"read {self._name}", "rows") as bar:
            async for batch in self.scan_arrow(
                prefix=prefix,
                columns=columns,
                key_column=key_column,
                version_column=version_column,
                consistency=consistency,
                timeout=timeout,
            ):
                form.collect(batch)
                bar.add(batch.num_rows)
        return form.collected()

    async def to_pandas(
        self,
        *,
        prefix: str | bytes = b"",
        columns: Sequence[str] | None = None,
        key_column: str = "key",
        version_column: str | None = None,
        consistency: str = "leader",
        timeout: float | None = None,
    ) -> Any:
        """Return rows as a `pandas.DataFrame`; see `to_arrow`."""
        table = await self.to_arrow(
            prefix=prefix,
            columns=columns,
            key_column=key_column,
            version_column=version_column,
            consistency=consistency,
            timeout=timeout,
        )
        return table.to_pandas()

    async def count(self, *, consistency: str = "leader", timeout: float | None = None) -> TableCount:
        """Return the number of rows and columns. The partitions are asked side by side."""
        counts = await self.describe_partitions(consistency=consistency, timeout=timeout)
        return TableCount(sum(each.rows for each in counts), sum(each.columns for each in counts))

    async def describe_partitions(
        self, partitions: Sequence[int] | None = None, *, consistency: str = "leader", timeout: float | None = None
    ) -> list[TablePartition]:
        """Return what partitions have, all of them by default, and how much memory their keys take."""
        deadline = self._operations.deadline(timeout)
        numbers = await self._calls.numbers(partitions, timeout)
        return await self._calls.run_all([self._operations.count(number, consistency, deadline) for number in numbers])

    async def watch(self, key: str | bytes, columns: Sequence[str] | None = None) -> AsyncGenerator[Row | None, None]:
        """Yield a row as it is now, and again after each change of it; `None` while it does not exist.

        Of changes that follow each other quickly, only the last may be yielded. The end of a column by its time to live
        is noticed with the next write to the partition, and that the table was made anew, after some seconds. An
        endless wait: leave the loop and close the generator (`contextlib.aclosing`) to stop.

        Args:
            key: the row's key.
            columns: names of columns; the row is yielded after writes of others, too.
        """
        wanted = column_slice(columns, None, None, None)
        seen: SeenRow | None = None
        while True:
            try:
                found = await self._calls.run(self._operations.look(key, wanted, seen, WATCH_S))
            except (OffsetNotAvailableError, TimedOutError, UnknownTopicIdError) as error:
                if not error.retriable:
                    raise
                continue  # No write to the partition, or a table that was made anew.
            before, seen = seen, found
            if before is None or found.state != before.state:
                yield found.row

    # --- writes ---

    async def put(
        self,
        key: str | bytes,
        columns: Mapping[str, Any],
        *,
        if_version: int | None = None,
        ttl: timedelta | None = None,
        timeout: float | None = None,
    ) -> int:
        """Set columns of a row, all of them or none; a value of `None` deletes its column, others stay as they are.

        Returns when all in-sync replicas have it. Sent again after a lost response, it is applied once.

        Args:
            key: the row's key.
            columns: value by name, at least one.
            if_version: version that the row must have, `headrace.ABSENT` for a row that must not exist.
            ttl: time after which these columns are deleted; by default the table's `table_ttl_ms`.
            timeout: seconds.

        Returns:
            The version of the row.

        Raises:
            VersionConflictError: If the row has another version; nothing was written.
        """
        if not columns:
            raise ConfigError("columns is empty", action="Name at least one; delete removes a row.")
        ttl_ms = checked_ttl_ms(ttl)
        return await self._calls.run(
            self._operations.write(key, columns, if_version=if_version, ttl_ms=ttl_ms, timeout=timeout)
        )

    async def put_many(
        self, rows: Any, *, key_column: str = "key", delete_nulls: bool = False, ttl: timedelta | None = None
    ) -> Versions:
        """Set columns of many rows: the bulk path, by an idempotent producer with many batches in flight.

        Each row is written as by `put`: all its columns or none, once, and in the order of the rows, so that of two
        with one key the later one is the last. Rows of different batches may be seen and may fail independently. A
        batch is tried for request_timeout_ms.

        Args:
            rows: an iterable of pairs of key and columns; or a `pyarrow.Table`, `RecordBatch` or `RecordBatchReader`,
                or a data frame of pandas or Polars, with a column for the key and one for each column.
            key_column: name of the column with the keys, for Arrow and data frames.
            delete_nulls: whether a null of Arrow or a data frame deletes the column; otherwise it stays as it is.
            ttl: time after which the columns are deleted, by the clock of this machine; by default the table's
                `table_ttl_ms`.

        Returns:
            `int64[n]`: the version of each row in their order, -1 for a row without columns, which is not written.

        Raises:
            PutManyError: If a row was not written, or if that is not known; it names the row, and has the versions of
                those that were written.
        """
        return await self._bulk.put(rows, key_column, checked_ttl_ms(ttl), delete_nulls=delete_nulls)

    async def delete(
        self,
        key: str | bytes,
        columns: Sequence[str] | None = None,
        *,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Delete a row, or some of its columns; what is not there is no error.

        Raises:
            VersionConflictError: If the row has another version than `if_version`; nothing was deleted.
            BatchTooLargeError: If the keys of the columns do not fit into a batch; delete the columns in parts.
        """
        gone = None if columns is None else dict.fromkeys(listed("columns", columns))
        if gone is not None and not gone:
            raise ConfigError("columns is empty", action="Leave it out to delete the row.")
        await self._calls.run(self._operations.write(key, gone, if_version=if_version, ttl_ms=0, timeout=timeout))

    async def purge(
        self,
        keys: Iterable[str | bytes] = (),
        *,
        prefix: str | bytes | None = None,
        deleted: bool = False,
        timeout: float = PURGE_S,
    ) -> AsyncGenerator[PurgedReplica, None]:
        """Delete rows, and remove what is left of them from the files of every replica, at once.

        Yields each replica once it has nothing of them any more, or with the problem why it has. Each compacts its log
        for that: expensive, so purge many rows by one call. Columns that are written meanwhile stay.

        Args:
            keys: keys of rows, which are deleted first.
            prefix: instead, all rows whose keys begin with it, which are deleted first.
            deleted: instead, all that is deleted already or has expired.
            timeout: seconds, for each replica.

        Raises:
            HeadraceError: If a row cannot be deleted, or the table's replicas are not known.
        """
        rows = list(map(key_of, listed("keys", keys)))
        if bool(rows) + (prefix is not None) + deleted != 1:
            raise ConfigError("purge takes keys, or prefix, or deleted", action="Name the rows in one way.")
        begin = None if prefix is None else key_of(prefix)
        for wanted in await self._calls.run(self._operations.purged_partitions(rows, begin, deleted, timeout)):
            for key in wanted.keys:
                await self._calls.run(self._operations.delete_row(key, timeout))
            if begin is not None:
                async for row in self.scan(prefix=begin, partitions=[wanted.partition], timeout=timeout):
                    await self._calls.run(self._operations.delete_row(row.key, timeout))
            before = await self._calls.run(self._operations.committed(wanted.partition, timeout))
            purged = set[int]()
            while new := await self._calls.run(self._purges.replicas(wanted.partition, timeout, purged)):
                for broker_id in new:  # One that is added meanwhile may copy the rows from one that has them.
                    purged.add(broker_id)
                    yield await self._calls.run(self._purges.purge(wanted, broker_id, before, timeout))

    def _after_fork(self) -> None:
        self._calls.is_forked = True
