"""The asyncio `Producer`. One event loop.

A second shell over the parts of the blocking one: `_Core` is that producer with its calls on the loop's channels, its
clock and its questions to coordinators as the loop's timers and tasks, and its waits awaited. No thread, no hop a
record: `send` appends and returns unless it must wait. No await stands between taking memory and using it, nor between
appending and returning the future: so a cancelled await loses no record that was taken, and takes none that was not.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Unpack, cast

import grpc

from headrace.client.base.call_counts import CallStats
from headrace.client.base.config import ProducerConfig, build, client_repr
from headrace.client.base.errors import BufferFullError, ClosedError, ConfigError
from headrace.client.base.operations import aexecute
from headrace.client.base.records import RecordMetadata
from headrace.client.base.request_ids import metadata_of
from headrace.client.base.retry import Backoff
from headrace.client.base.serializers import serialize
from headrace.client.base.settings_types import ProducerSettings
from headrace.client.base.unclosed import close_in_loop
from headrace.client.interceptors.audit_interceptor import publisher_settings
from headrace.client.interceptors.audit_interceptor_async import AsyncAuditInterceptor
from headrace.client.interceptors.interceptor import ProducerInterceptor
from headrace.client.net.connection_async import AsyncConnections
from headrace.client.producer.accumulator import Headers, record_cost
from headrace.client.producer.futures import PendingBatch
from headrace.client.producer.futures import RecordFuture as SyncRecordFuture
from headrace.client.producer.maintenance import ProducerMaintenance, refresh_delay_ms
from headrace.client.producer.partition_queue import Finished, Request
from headrace.client.producer.produce_rpc import GRACE_MS, produce_request
from headrace.client.producer.producer import Producer as BlockingProducer
from headrace.client.producer.producer import ReserveMemory, _live
from headrace.client.producer.sender import ProducerStats
from headrace.wire.errors import HeadraceError, Outcome, TimedOutError

_log = logging.getLogger("headrace.client")


class RecordFuture:
    """What became of one record: `await future` gives where it went, any number of times."""

    __slots__ = ("_future",)

    def __init__(self, future: SyncRecordFuture) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether the record was delivered or has failed."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the acknowledgement. Cancelling ends the wait, not the delivery.

        Raises:
            HeadraceError: why it failed; `outcome` says whether it may be read later.
        """
        if not self._future.done():
            yield from _until_done(self._future.batch).__await__()
        return self._future.result(0)

    def __repr__(self) -> str:
        return repr(self._future)


class BatchFuture:
    """What became of the records of one `send_many`; `await` it."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[tuple[SyncRecordFuture, int]]) -> None:
        self.parts = [(RecordFuture(future), records) for future, records in parts]
        """(future of the batch's first record, how many records), in the order in which they were sealed."""

    def __len__(self) -> int:
        return sum(records for _, records in self.parts)

    def done(self) -> bool:
        """Whether every record was delivered or has failed."""
        return all(future.done() for future, _ in self.parts)

    def __await__(self) -> Generator[Any, None, list[tuple[RecordMetadata, int]]]:
        """Wait for every acknowledgement; give where the first record of each run went, and how long the run is.

        Raises:
            HeadraceError: the first failure.
        """
        return self._all().__await__()

    def __repr__(self) -> str:
        return f"BatchFuture({len(self)} records, {'done' if self.done() else 'pending'})"

    async def _all(self) -> list[tuple[RecordMetadata, int]]:
        return [(await future, records) for future, records in self.parts]


class Producer:
    """Sends records from the coroutines of one event loop. Settings, errors and guarantees are `headrace.Producer`'s.

    Make it where the loop runs; use it with `async with`.
    """

    def __init__(self, **settings: Unpack[ProducerSettings]) -> None:
        """See `ProducerConfig` for the settings; `return_futures` is always on here. Connects when first used.

        Raises:
            ConfigError: an unknown setting, a value out of range, or settings that contradict each other.
            UnsupportedCodecError: the compression's package is not installed; the message names it.
        """
        if not build(ProducerConfig, settings).return_futures:
            raise ConfigError("return_futures=False is for the blocking Producer", action="Leave it out.")
        self._core = _Core(settings)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flush and close; after an exception close without waiting long, so that it is not hidden."""
        if exc_type is None:
            await self.close()
        else:
            with contextlib.suppress(HeadraceError):
                await self.close(timeout=1.0)

    def __repr__(self) -> str:
        return client_repr("Producer", self._core.config, f"client_id={self._core.config.client_id}")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)  # Wrong settings leave none.
        if core is not None and core._channels.is_open:
            close_in_loop(self, core._loop, self.close)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Take one record; it is on its way when this returns. Waits for room or metadata, at most max_block_ms.

        Args and errors are those of `headrace.Producer.send`. Cancelled while it waits, it has not taken the record.

        Returns:
            A future, to be awaited or not.
        """
        return RecordFuture(await self._core.send_one(topic, value, key, headers, partition, timestamp_ms))

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
        """Send one record and wait for its acknowledgement. Cancelled, the record may still arrive.

        Raises:
            HeadraceError: why it failed; `outcome` says whether it may be read later.
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
    ) -> BatchFuture:
        """Take many records at once, lists or Arrow arrays; see `headrace.Producer.send_many`.

        When it raises or is cancelled, the first records may have been taken: some whole batches.
        """
        operation = self._core._send_many(topic, values, keys, headers, timestamps_ms, partition)
        return BatchFuture((await aexecute(operation, self._core.run_step)).parts)

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything that was taken so far and wait until it is acknowledged. Cancelling ends the wait alone.

        Raises:
            DeliveryError: what failed since the last flush, or is still on its way after `timeout` seconds.
        """
        await self._core.flush_all(timeout)

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to `timeout` seconds, then give up what is left, and close. Again: waits for the first.

        Cancelled, it gives up at once what is left, and closes.

        Raises:
            DeliveryError: what was not delivered.
        """
        await self._core.close_all(timeout)

    def stats(self) -> ProducerStats:
        """Return counts of records sent and records in flight; cheap."""
        return self._core.stats()

    def calls(self) -> CallStats:
        """Return statistics of the produce calls; cheap."""
        return self._core.calls()

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicError, NoBrokersAvailableError: as `send`.
        """
        return len((await aexecute(self._core._topic_operation(topic), self._core.run_step)).buffers)


class _Core(BlockingProducer):
    """The blocking producer with nothing that blocks. Owned by one `Producer`; its loop alone touches it."""

    def __init__(self, settings: ProducerSettings) -> None:
        super().__init__(**settings)
        _live.discard(self)  # What is done at exit for producers that were left open would block, with no loop to wait.
        self._loop = asyncio.get_running_loop()
        self._channels = AsyncConnections("Producer", self._config)
        self._async_maintenance = AsyncProducerMaintenance(self)
        self._maintenance = cast(ProducerMaintenance, self._async_maintenance)
        self._waiting_for_room: dict[asyncio.Future[None], None] = {}
        self._ended = asyncio.Event()

    def __del__(self) -> None:
        """The class around it closes it."""

    def _audit(self, config: ProducerConfig) -> ProducerInterceptor:
        return AsyncAuditInterceptor(config, lambda: Producer(**publisher_settings(config)))

    async def send_one(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> SyncRecordFuture:
        data = serialize(self._value_serializer, value, "value")
        key_data = serialize(self._key_serializer, key, "key")
        cost = record_cost(data, key_data, headers)
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        while True:
            self._check_usable()
            found = self._topics.get(topic)
            if found is None:
                found = await aexecute(self._find_topic(topic), self.run_step)
            buffer = found.buffers[self._choose(found, key_data, partition)]
            done = self._append_now(buffer, data, key_data, headers, timestamp_ms, cost, sticky=False)
            if isinstance(done, SyncRecordFuture):
                return done
            if done:
                await self.take_memory(done, deadline)
                self._grow(buffer, done)
            else:
                await asyncio.sleep(0)  # A batch was sealed: a loop that only sends lets its call start.

    async def run_step(self, step: Any) -> Any:
        """Do one step."""
        if isinstance(step, ReserveMemory):
            return await self.take_memory(*step)
        return await self._channels.run_step(step)

    async def take_memory(self, amount: int, deadline: float) -> None:
        """Take bytes from the buffer pool, waiting until `deadline`. They are the caller's when this returns."""
        if not self._buffer_pool.acquire(amount):
            self._seal_all()
            while not self._buffer_pool.acquire(amount):
                self._check_usable()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BufferFullError(self._config.buffer_memory, self._config.max_block_ms)
                await self._room(left)
        if self._closed:
            self._buffer_pool.release(amount)
            raise ClosedError("Producer")

    async def _room(self, seconds: float) -> None:
        """Wait until memory was given back, or the time is up."""
        waiter = self._loop.create_future()
        self._waiting_for_room[waiter] = None
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return
        finally:
            del self._waiting_for_room[waiter]

    async def flush_all(self, timeout: float | None) -> None:
        self._check_usable(closed_is_fine=True)
        self._seal_all()
        waiting = list(self._in_flight_requests.unresolved)
        try:
            async with asyncio.timeout(timeout):
                for batch in waiting:
                    await _until_done(batch.pending)
        except TimeoutError:
            pass  # What is not done is counted below, and raised.
        self._raise_failures(sum(batch.records for batch in waiting if not batch.pending.done()))

    async def close_all(self, timeout: float | None) -> None:
        if self._forked_at:
            return
        if self._closed:
            await self._ended.wait()
            return
        self._closed = True
        self._open.clear()
        self._keyed.clear()
        try:
            self._wake_waiters()
            self._retire_buffers()
            await self.flush_all(timeout)
        finally:
            self._give_up(ClosedError("Producer"))
            self._async_maintenance.close()
            await self._interceptors.aclose(timeout)
            self._ended.set()
            await asyncio.shield(self._loop.create_task(self._channels.close()))

    def _call(self, request: Request) -> None:
        try:
            call = self._channels.endpoint(request.address).produce(
                produce_request(request, self._config),
                timeout=(request.timeout_ms + GRACE_MS) / 1000,
                metadata=metadata_of(request.request_id),
            )
        except (ClosedError, grpc.aio.UsageError):
            self._resolve(request, None, ClosedError("Producer"))
            return
        task = self._loop.create_task(self._channels.answer(call))
        self._calls[request] = task
        task.add_done_callback(lambda done: self._landed(request, done))

    def _landed(self, request: Request, call: Any) -> None:
        if not call.cancelled() and not isinstance(call.exception(), HeadraceError):
            super()._landed(request, call)
            return
        self._calls.pop(request, None)
        error = TimedOutError("the call was given up", outcome=Outcome.UNKNOWN, retriable=False)
        self._resolve(request, None, error)

    def _finish(self, finished: list[Finished]) -> None:
        super()._finish(finished)
        if finished:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self._waiting_for_room:
            if not waiter.done():
                waiter.set_result(None)

    async def refresh(self) -> bool:
        """Read metadata and the producer id; whether nothing is wanted any more."""
        return await aexecute(self._refresh_operation(), self.run_step)

    @property
    def config(self) -> ProducerConfig:
        return self._config

    @property
    def backoff(self) -> Backoff:
        return self._backoff

    def seal_due(self) -> int | None:
        return self._seal_due()


class AsyncProducerMaintenance:
    """A producer's timer and its one task, with the methods of `ProducerMaintenance`. Owned by it, ended by `close`."""

    def __init__(self, core: _Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def due_at(self, at_ms: int | None) -> None:
        """Something is due at a monotonic time in ms."""
        if at_ms is None or self._stopped:
            return
        self._start()
        at = self._loop.time() + at_ms / 1000 - time.monotonic()
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() <= at:
            return
        self._cancel_timer()
        self._timer = self._loop.call_at(at, self._tick)

    def refresh_wanted(self) -> None:
        """Ask for metadata or the producer id soon."""
        self._start()
        self._wanted.set()

    def close(self) -> None:
        """End the timer and the task."""
        self._stopped = True
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        if self._task is None and not self._stopped:
            self._task = self._loop.create_task(self._refresh_loop(), name="headrace-refresh")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.due_at(self._core.seal_due())

    async def _refresh_loop(self) -> None:
        """Refresh when something is wanted, and before metadata grows too old; never twice within a short while."""
        seconds = self._core.config.metadata_max_age_ms / 1000
        failures = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
            self._wanted.clear()
            satisfied = False
            try:
                satisfied = await self._core.refresh()
                failures = 0
            except ClosedError:
                return
            except HeadraceError as error:
                failures += 1
                _log.warning("metadata could not be read (try %d): %s", failures, error)
            except Exception:
                failures += 1
                _log.exception("reading metadata failed")
            await asyncio.sleep(refresh_delay_ms(self._core.backoff, failures) / 1000)
            seconds = self._core.config.metadata_max_age_ms / 1000 if satisfied else 0.0


async def _until_done(batch: PendingBatch) -> None:
    """Wait until a batch is done, however; one that is still open is sent now."""
    if batch.done():
        return
    waiter = asyncio.get_running_loop().create_future()
    batch.call_when_done(_waker(waiter))
    batch.flush_now()
    await waiter


def _waker(waiter: "asyncio.Future[None]") -> Callable[[], None]:
    return lambda: None if waiter.done() else waiter.set_result(None)
