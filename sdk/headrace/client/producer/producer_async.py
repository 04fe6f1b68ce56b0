"""Asyncio `Producer`. Used on one event loop.

`ProducerCore` decides, as in the blocking producer; calls, timers and waits use the loop. There is no thread and no hop
per record: `send` appends and returns unless it must wait. There is no await between reserving memory and using it, nor
between appending and returning the future, so a cancelled await loses no accepted record and accepts no other.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Unpack
from zlib import crc32

from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ProducerConfig, build, client_repr
from headrace.client.base.errors import ConfigError
from headrace.client.base.operations import aexecute
from headrace.client.base.records import RecordMetadata
from headrace.client.base.settings_types import ProducerSettings
from headrace.client.base.unclosed import close_in_loop
from headrace.client.interceptors.audit import publisher_settings
from headrace.client.interceptors.audit_interceptor_async import AsyncAuditInterceptor
from headrace.client.producer.accumulator import Headers
from headrace.client.producer.futures import PendingRecord
from headrace.client.producer.futures_async import BatchFuture, RecordFuture, until_done
from headrace.client.producer.producer_core import ProducerCore
from headrace.client.producer.producer_io_async import AsyncProducerIO
from headrace.client.producer.sender import ProducerStats
from headrace.wire.errors import HeadraceError

__all__ = ["BatchFuture", "Producer", "RecordFuture"]


class Producer:
    """Sends records from the coroutines of one event loop, with settings and guarantees of `headrace.Producer`.

    Create it on the running loop; use it with `async with`.
    """

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        """Create it with the settings of `ProducerConfig`; `return_futures` is always on. Connects on first use.

        Raises:
            ConfigError: For an unknown setting, a value out of range, or contradictory settings.
            UnsupportedCodecError: If the compression's package is not installed; the message names it.
        """
        config = build(ProducerConfig, settings)
        if not config.return_futures:
            raise ConfigError("return_futures=False is for the blocking Producer", action="Leave it out.")
        claims_settings = publisher_settings(config)
        audit = [AsyncAuditInterceptor(config, lambda: Producer(**claims_settings))] if config.audit_topic else []
        self._io = AsyncProducerIO(config)
        self._core = ProducerCore(config, self._io, [*config.interceptors, *audit], RecordFuture)
        self._appenders = self._core.open_batches.appenders
        self._keyed_appenders = self._core.open_batches.keyed_appenders
        self._ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flush and close; after an exception, close with a short wait so that the exception is not delayed."""
        if exc_type is None:
            await self.close()
        else:
            with contextlib.suppress(HeadraceError):
                await self.close(timeout=1.0)

    def __repr__(self) -> str:
        config = self._core.config
        return client_repr("Producer", config, f"client_id={config.client_id}")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # Not set after wrong settings.
        if core is not None and self._io.connections.is_open:
            close_in_loop(self, self._io.loop, self.close)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Queue one record for delivery. Waits for room or metadata, at most max_block_ms.

        Arguments and errors are those of `headrace.Producer.send`. A cancelled wait has not accepted the record.

        Returns:
            A future, which may be awaited.
        """
        if headers is None and partition is None and timestamp_ms is None and type(value) is bytes:
            try:
                if key is None:
                    return self._appenders[topic](value)  # type: ignore[return-value]
                if type(key) is bytes:
                    appenders = self._keyed_appenders[topic]
                    return appenders[crc32(key) % len(appenders)]((key, value))  # type: ignore[return-value]
            except (KeyError, StopIteration, ValueError):
                pass  # There is no open batch with room for it.
        core = self._core
        record = core.make_record(topic, value, key, headers, partition, timestamp_ms)
        try:
            done = core.append(record)
            if not isinstance(done, PendingRecord):
                if not done:
                    await asyncio.sleep(0)  # A batch was sealed: a loop that only sends must let its call start.
                done = await aexecute(core.append_waiting(record), self._io.run_step)
        except BaseException as error:
            if record.span is not None:
                record.span.fail(error)
            raise
        return done  # type: ignore[return-value]

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement. After a cancellation the record may still be stored.

        Raises:
            HeadraceError: The reason of the failure; `outcome` states whether the record may be stored.
        """
        future = await self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return await future

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps_ms: Any = None,
        partition: int | None = None,
        group_ends: Any = None,
    ) -> BatchFuture:
        """Queue many records at once, from lists or Arrow arrays; see `headrace.Producer.send_many`.

        After an error or a cancellation, the first records may have been accepted, in whole batches.
        """
        operation = self._core.send_many(topic, values, keys, headers, timestamps_ms, partition, group_ends)
        return BatchFuture(await aexecute(operation, self._io.run_step))

    async def send_table(
        self, topic: str, table: Any, *, keys: Any = None, timestamps_ms: Any = None, partition: int | None = None
    ) -> BatchFuture:
        """Queue the rows of a table for a typed topic; see `headrace.Producer.send_table`.

        After an error or a cancellation, the first rows may have been accepted, in whole batches.
        """
        operation = self._core.send_table(topic, table, keys, timestamps_ms, partition)
        return BatchFuture(await aexecute(operation, self._io.run_step))

    async def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records and wait until they are acknowledged. Cancellation ends only the wait.

        Raises:
            DeliveryError: For records that failed since the last flush, or are pending after `timeout` seconds.
        """
        waiting = self._core.begin_flush()
        with contextlib.suppress(TimeoutError):  # Unfinished batches are counted and raised by `end_flush`.
            async with asyncio.timeout(timeout):
                for batch in waiting:
                    await until_done(batch.pending)
        self._core.end_flush(waiting)

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to `timeout` seconds, then abandon the rest, and close. A second call waits for the first.

        If it is cancelled, it abandons the rest at once, and closes.

        Raises:
            DeliveryError: For records that were not delivered.
        """
        if self._core.is_forked:
            return
        if self._core.is_closed:
            await self._ended.wait()
            return
        try:
            self._core.begin_close()
            await self.flush(timeout)
        finally:
            self._core.end_close()
            self._ending = self._io.loop.create_task(self._io.close())
            try:
                await self._core.interceptors.aclose(timeout)
            finally:
                self._ended.set()
            await asyncio.shield(self._ending)

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap."""
        return self._core.sender.stats()

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap."""
        return self._core.sender.calls()._replace(grpc_fallbacks=self._io.connections.native.ports.fallbacks)

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicError, NoBrokersAvailableError: As `send`.
        """
        return len((await aexecute(self._core.topic(topic), self._io.run_step)).buffers)
