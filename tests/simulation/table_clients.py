"""Clients of a table: applications over the shipped asyncio `Table`. What they saw is judged as a register."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace import aio
from headrace.client.net.cluster_metadata import ClusterMetadata
from headrace.client.table.row_writes import PutManyError
from headrace.client.table.rows import Row, VersionConflictError
from headrace.wire.errors import HeadraceError, Outcome
from headrace.wire.table_keys import ABSENT

from tests.simulation.clients import CALLING, TOPIC, Client
from tests.simulation.registers import FAILED, KEPT, OK, REFUSED, UNKNOWN, Operation

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

ROWS = ("a", "b", "c")
FILLING = ("x", "x" * 40)
"""Values of a second column, so that batches have several sizes."""
LIFE_MS = (1, 50, 400, 2_000)
"""Lives of what expires."""
BULK_SHARE = 0.5
"""Of the writes without a condition."""
DELETED_SHARE = 0.15
"""Of the writes of one row."""
MANY_SHARE = 0.3
"""Of the reads from leaders: of all rows at once."""
WATCHED_SHARE = 0.1
"""Of the other reads from leaders: over some time, each change."""
WATCHED_MS = (20, 100, 700)
SOON_S = 2.0
"""A watch looks again by itself after 5 s."""
BARE_SHARE, KEEPING_SHARE = 0.2, 0.2
"""Of the writes: those that delete the second column, and those under a condition that leave it as it is."""


class TableClient(Client):
    """Counts in rows by compare and set, writes over them, and reads them."""

    def __init__(self, cluster: Cluster, number: int, period_ms: int) -> None:
        super().__init__(cluster, f"t{number}")
        self.period_ms = period_ms
        self.sending = True
        self.waits = False
        """Whether a call is not answered yet."""
        self._table: aio.Table | None = None
        self._writes = 0
        self._versions: dict[str, int] = {}
        self._topic_id = b""
        self._bulk = self._apart("bulk")
        self._deleting = self._apart("deleting")
        self._reading = self._apart("reading")
        self._watching = self._apart("watching")
        self._filling = self._apart("filling")

    def _cluster_metadata(self) -> ClusterMetadata | None:
        return None if self._table is None else self._table._operations._metadata

    async def _live(self) -> None:
        self._table = aio.Table(TOPIC, bootstrap_servers=self._servers, transport=self._transport, **CALLING)
        while self.sending:
            await self._rest(self.period_ms)
            self.waits = True
            row = self._chance.choice(ROWS)
            draw = self._chance.random()
            if self.cluster.plan.purges and self._chance.random() < 0.04:
                await self._purge(row)
            elif draw < 0.45 and self._deleting.random() < DELETED_SHARE:
                await self._delete(row, self._deleting.choice((None, self._versions.get(row, ABSENT))))
            elif draw < 0.45:
                await self._put(row, self._versions.get(row, ABSENT))
            elif draw < 0.6:
                await (self._put_many() if self._bulk.random() < BULK_SHARE else self._put(row, None))
            elif draw <= 0.85 and self._reading.random() < MANY_SHARE:
                await self._read_rows()
            elif draw <= 0.85 and self._watching.random() < WATCHED_SHARE:
                await self._watch(row, self._watching.choice(WATCHED_MS))
            else:
                await self._get(row, from_replica=draw > 0.85)
            self.waits = False

    def _next_value(self) -> str:
        self._writes += 1
        return f"{self.name}.{self._writes}"

    async def _put(self, row: str, expected: int | None) -> None:
        assert self._table is not None
        value, ttl = self._next_value(), self._life()
        columns = self._columns(value, self._chance.choice(FILLING))
        # A column that is kept may end before the other one.
        if expected not in (None, ABSENT) and not self.cluster.plan.expires and self._filling.random() < KEEPING_SHARE:
            del columns["filling"]
            self.world.count("row writes that kept a column")
        lives_ms = None if ttl is None else ttl // timedelta(milliseconds=1)
        putting = self._table.put(row, columns, if_version=expected, ttl=ttl, timeout=2.0)
        await self._write("row writes", row, value, expected, putting, lives_ms, columns.get("filling", KEPT))

    def _columns(self, value: str, filling: str) -> dict[str, str | None]:
        """Return what is written into a row: the value last, so that its version is the row's."""
        return {"filling": None if self._filling.random() < BARE_SHARE else filling, "value": value}

    async def _delete(self, row: str, expected: int | None) -> None:
        """Delete a row, as `Table.delete` does: for the model a write of what ends at once."""
        assert self._table is not None
        deleting = self._table._operations.write(row, None, if_version=expected, ttl_ms=0, timeout=2.0)
        running = self._table._calls.run(deleting)
        await self._write("row deletions", row, self._next_value(), expected, running, 0)

    async def _write(
        self, what: str, row: str, value: str, expected: int | None, writing: Awaitable[int], lives_ms: int | None,
        filling: str | None = None,
    ) -> None:  # fmt: skip
        """Await the version of a write, and note it; a deletion is one that lives for no time."""
        begin, topic_id = self.cluster.next_order(), self._topic()
        outcome, version, begin_ms = OK, ABSENT, self.world.now_ms
        try:
            version = await writing
            self._versions[row] = ABSENT if lives_ms == 0 else version
        except VersionConflictError as error:
            outcome, version = REFUSED, error.version
            self._versions[row] = version
        except HeadraceError as error:
            outcome = FAILED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN
            self._failed(f"{what} failed", error)
        self.world.count(f"{what} {outcome}")
        if lives_ms == 0 and outcome == OK and version == ABSENT:  # There was nothing to delete.
            self._note(row, begin, topic_id, outcome=OK, version=ABSENT, value="")
            return
        self._note(
            row, begin, topic_id, outcome=outcome, version=version, value=value, writes=True, expected=expected,
            lives_ms=lives_ms, begin_ms=begin_ms, filling=filling,
        )  # fmt: skip

    async def _purge(self, row: str) -> None:
        """Delete a row, and have each replica purge it: a call that fails may have deleted it nevertheless."""
        assert self._table is not None
        value, begin, topic_id = self._next_value(), self.cluster.next_order(), self._topic()
        outcome, begin_ms = OK, self.world.now_ms
        try:
            async for replica in self._table.purge([row], timeout=3.0):
                self.world.count(f"replicas {'' if replica.done else 'not '}purged")
        except HeadraceError as error:
            self._failed("purges failed", error)
            outcome = UNKNOWN
        self._note(
            row, begin, topic_id, outcome=outcome, version=ABSENT, value=value, writes=True, deletes=True,
            begin_ms=begin_ms,
        )  # fmt: skip

    def _life(self) -> timedelta | None:
        if not self.cluster.plan.expires or self._chance.random() < 0.5:
            return None
        return timedelta(milliseconds=self._chance.choice(LIFE_MS))

    async def _put_many(self) -> None:
        """Write some rows, each of two columns, in one or several batches."""
        assert self._table is not None
        rows = self._bulk.sample(ROWS, self._bulk.randrange(1, len(ROWS) + 1))
        begin, topic_id = self.cluster.next_order(), self._topic()
        # No value is sent twice, by which batches are told apart (H55).
        values = [self._next_value() for _ in rows]
        columns = [self._columns(value, value + self._bulk.choice(FILLING)) for value in values]
        outcome = OK
        try:
            versions = (await self._table.put_many(zip(rows, columns, strict=True))).tolist()
        except PutManyError as error:
            outcome, versions = FAILED if error.outcome is Outcome.NOT_APPLIED else UNKNOWN, error.versions.tolist()
            versions += [ABSENT] * (len(rows) - len(versions))
        except HeadraceError:  # Of the look-up before anything was sent.
            outcome, versions = FAILED, [ABSENT] * len(rows)
        for row, each, version in zip(rows, columns, versions, strict=True):
            found = OK if version != ABSENT else UNKNOWN if outcome == OK else outcome
            if found == OK:
                self._versions[row] = version
            self.world.count(f"row bulk writes {found}")
            self._note(
                row, begin, topic_id, self._topic_of_producer(),
                outcome=found, version=version, value=str(each["value"]), filling=each["filling"],
                writes=True, expected=None,
            )  # fmt: skip

    async def _get(self, row: str, *, from_replica: bool) -> None:
        assert self._table is not None
        begin, topic_id, own = self.cluster.next_order(), self._topic(), self._versions.get(row, ABSENT)
        consistency, least = ("replica", own + 1) if from_replica else ("leader", 0)
        try:
            found: Row | None = await self._table.get(row, consistency=consistency, min_offset=least, timeout=2.0)
        except HeadraceError as error:
            self._failed("row reads failed", error)
            return
        self._note_read(row, found, begin, topic_id, own, from_replica=from_replica)

    async def _watch(self, row: str, for_ms: int) -> None:
        """Read a row again after each change of it, for a while: the wait is cancelled."""
        assert self._table is not None
        try:
            async with asyncio.timeout(for_ms / 1000), aclosing(self._table.watch(row)) as changes:
                while True:
                    await self._next_change(row, changes)
                    self.world.count("changes of rows that were watched")
        except TimeoutError:
            self.world.count("watches that were left")
        except HeadraceError as error:
            self._failed("watches failed", error)

    async def watch_a_change(self) -> None:
        """Each row that is watched is read again at once after a change, when all is well."""
        self._table = aio.Table(TOPIC, bootstrap_servers=self._servers, transport=self._transport, **CALLING)
        self.waits = True
        for row in ROWS:
            async with aclosing(self._table.watch(row)) as changes:
                await self._next_change(row, changes)
                told = asyncio.ensure_future(self._next_change(row, changes))
                await self._rest(self.period_ms)
                value, filling = self._next_value(), self._filling.choice(FILLING)
                putting = self._table.put(row, {"filling": filling, "value": value})
                before = self._versions.get(row, ABSENT)
                await self._write("row writes", row, value, None, putting, None, filling)
                written = self._versions.get(row, ABSENT)
                if written == before:  # The write has failed.
                    told.cancel()
                    await asyncio.wait([told])
                    continue
                try:
                    async with asyncio.timeout(SOON_S):
                        while await told < written:
                            told = asyncio.ensure_future(self._next_change(row, changes))
                except TimeoutError:
                    self.cluster.promises.breaks("liveness", f"{self.name} was not told of {row} at {written}")
            self.world.count("watches when all was well")
        self.waits = False

    async def _next_change(self, row: str, changes: AsyncIterator[Row | None]) -> int:
        begin, topic_id, own = self.cluster.next_order(), self._topic(), self._versions.get(row, ABSENT)
        found = await anext(changes)
        self._note_read(row, found, begin, topic_id, own, from_replica=False)
        return ABSENT if found is None else found.version

    async def _read_rows(self) -> None:
        """Read all rows at once, or in pages of a scan, or count them: each is read by itself."""
        assert self._table is not None
        begin, topic_id, owns = self.cluster.next_order(), self._topic(), dict(self._versions)
        found: dict[str, Row] = {}
        kind = self._reading.choice(("get_many", "scan", "count"))
        try:
            if kind == "count":
                count = await self._table.count(timeout=2.0)
                if not count.rows <= count.columns <= 2 * count.rows <= 2 * len(ROWS):
                    self.cluster.promises.breaks("I31", f"{self.name} counted {count} of {len(ROWS)} rows")
            elif kind == "scan":
                async for row in self._table.scan(page_rows=self._reading.choice((1, 2, 500)), timeout=2.0):
                    found[str(row.key.decode())] = row
            else:
                rows = await self._table.get_many(ROWS, timeout=2.0)
                found = {name: row for name, row in zip(ROWS, rows, strict=True) if row is not None}
        except HeadraceError as error:
            self._failed("row reads failed", error)
            return
        self.world.count(f"reads of rows: {kind}")
        for name in ROWS if kind != "count" else ():
            own = owns.get(name, ABSENT)
            self._note_read(name, found.get(name), begin, topic_id, own, from_replica=False)

    def _note_read(
        self, row: str, found: Row | None, begin: int, topic_id: bytes, own: int, *, from_replica: bool
    ) -> None:
        version = ABSENT if found is None else found.version
        self.world.count("row reads")
        if found is None and own > ABSENT:
            self.world.count("rows that had expired")
        if found is not None and not {"value"} <= set(found) <= {"filling", "value"}:
            self.cluster.promises.breaks("I31", f"{self.name} read a part of row {row}: {found}")
        if topic_id == self._topic():  # Otherwise `own` is of the topic before.
            if from_replica and found is not None and version < own:
                self.cluster.row_problems.append((topic_id, f"{self.name} read {row} at {version} after {own}"))
            self._versions[row] = max(version, own)
        self.world.count("rows without their second column", found is not None and "filling" not in found)
        value, filling = ("", None) if found is None else (str(found["value"]), found.get("filling"))
        self._note(
            row, begin, topic_id, outcome=OK, version=version, value=value, filling=filling, from_replica=from_replica
        )

    def _topic(self) -> bytes:
        metadata = self._cluster_metadata()
        topic = None if metadata is None else metadata.topic(TOPIC)
        found = self._topic_id if topic is None else topic.topic_id
        if found != self._topic_id:
            self._versions.clear()
        self._topic_id = found
        return found

    def _topic_of_producer(self) -> bytes:
        """Return the topic to which rows are put at once: the producer of the table has metadata of its own."""
        producer = None if self._table is None else self._table._bulk._producer
        topic = None if producer is None else producer._core.sender.cluster_metadata.topic(TOPIC)
        return self._topic() if topic is None else topic.topic_id

    def _note(self, row: str, begin: int, *topic_ids: bytes, **fields: Any) -> None:
        """Note a call; one during which the topic was made anew may be of either life."""
        operation = Operation(
            client=self.name, row=row, begin=begin, end=self.cluster.next_order(), end_ms=self.world.now_ms, **fields
        )
        lives = {each or self._topic() for each in (*topic_ids, self._topic())}
        if len(lives) > 1:
            if not operation.writes:
                return
            operation = operation._replace(outcome=UNKNOWN)
        for life in sorted(lives):
            self.cluster.row_operations.setdefault(life, []).append(operation)
