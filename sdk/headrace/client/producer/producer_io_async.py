"""The I/O layer of an asyncio producer: its channels, Produce calls and tasks. One event loop."""

import asyncio
import threading
from functools import partial
from typing import Any

import grpc

from headrace.client.base.background_async import AsyncBackgroundLoop
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.request_ids import metadata_of
from headrace.client.net.connection_async import AsyncConnections
from headrace.client.net.native_calls import NotConnectedError, parse_answer
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_rpc import (
    GRACE_MS,
    NativeProduce,
    error_of,
    grpc_produce_request,
    native_produce_request,
    parse_produced,
)
from headrace.client.producer.sender import Landed
from headrace.wire.errors import HeadraceError
from headrace.wire.frames import Frame

CLOSE_TIMEOUT_S = 1.0


class AsyncProducerIO:
    """A `ProducerIO` of one event loop. Owned by one producer."""

    def __init__(self, config: ProducerConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self._config = config
        self.connections = AsyncConnections("Producer", config)
        self.run_step = self.connections.run_step
        self.background = AsyncBackgroundLoop("headrace-producer", self.run_step)
        self._calls: dict[Request, Any] = {}
        """In flight; each has `cancel`."""

    def make_lock(self) -> threading.Lock:
        """See `ProducerIO`; never contended, as one thread runs the loop."""
        return threading.Lock()

    def start(self, request: Request, landed: Landed) -> None:
        """See `ProducerIO`."""
        make_request = partial(native_produce_request, request, self._config)
        call = self._calls[request] = NativeProduce()
        cancel = self.connections.native.begin(request.address, make_request, partial(self._answered, request, landed))
        if cancel is None:
            self._start_grpc(request, landed)
        else:
            call.cancel = cancel

    def _answered(self, request: Request, landed: Landed, frame: Frame | None, error: HeadraceError | None) -> None:
        """Take the end of a call over the native protocol."""
        response = None
        try:
            if isinstance(error, NotConnectedError) and self.connections.native.may_fall_back:
                self._start_grpc(request, landed)
                return
            if frame is not None:
                response = parse_answer(parse_produced, frame, request.address)
        except HeadraceError as failure:
            error = failure
        self._calls.pop(request, None)
        landed(request, response, error)

    def _start_grpc(self, request: Request, landed: Landed) -> None:
        try:
            call = self.connections.endpoint(request.address).produce(
                grpc_produce_request(request, self._config),
                timeout=(request.timeout_ms + GRACE_MS) / 1000,
                metadata=metadata_of(request.request_id),
            )
        except grpc.aio.UsageError as error:
            raise ClosedError("Producer") from error
        task = self._calls[request] = self.loop.create_task(self.connections.answer(call))
        task.add_done_callback(partial(self._ended, request, landed))

    def _ended(self, request: Request, landed: Landed, task: "asyncio.Task[Any]") -> None:
        self._calls.pop(request, None)
        error = grpc.FutureCancelledError() if task.cancelled() else task.exception()
        if error is not None:
            landed(request, None, error_of(error))
        else:
            landed(request, task.result(), None)

    def cancel(self, request: Request) -> None:
        """See `ProducerIO`."""
        task = self._calls.get(request)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End the tasks and the calls."""
        self.background.close()
        await self.background.join(CLOSE_TIMEOUT_S)
        await self.connections.close()
