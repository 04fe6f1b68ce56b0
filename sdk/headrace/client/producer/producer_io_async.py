"""I/O layer of an asyncio producer: its channels, Produce calls and tasks. Used on one event loop."""

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.client.base.background_async import AsyncBackgroundLoop
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.request_ids import metadata_of
from headrace.client.net.transport import open_connections_async
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_calls import ProduceCalls
from headrace.client.producer.produce_rpc import GRACE_MS, cancelled_call, error_of, grpc_produce_request
from headrace.client.producer.sender import Landed

if TYPE_CHECKING:
    from headrace.client.net.sessions import Ended

CLOSE_TIMEOUT_S = 1.0


class AsyncProducerIO:
    """Implementation of `ProducerIO` on one event loop. Owned by one producer."""

    def __init__(self, config: ProducerConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self._config = config
        self.connections = open_connections_async("Producer", config)
        self.run_step = self.connections.run_step
        self.background = AsyncBackgroundLoop("headrace-producer", self.run_step)
        self.calls = ProduceCalls(config, self.connections.native, self.connections.sessions, self._start_grpc)
        """Calls in flight."""

    def make_lock(self) -> threading.Lock:
        """See `ProducerIO`; never contended, as the loop runs on one thread."""
        return threading.Lock()

    def start(self, request: Request, landed: Landed) -> None:
        """See `ProducerIO`."""
        self.calls.start(request, landed)

    def _start_grpc(self, request: Request, token: str, ended: "Ended") -> "asyncio.Task[Any]":
        import grpc

        try:
            call = self.connections.endpoint(request.address).produce(
                grpc_produce_request(request, self._config),
                timeout=(request.timeout_ms + GRACE_MS) / 1000,
                metadata=metadata_of(request.request_id, token),
            )
        except grpc.aio.UsageError as error:
            raise ClosedError("Producer") from error
        task = self.loop.create_task(self.connections.answer(call))
        task.add_done_callback(partial(_ended, ended))
        return task

    def cancel(self, request: Request) -> None:
        """See `ProducerIO`."""
        self.calls.cancel(request)

    def stop_waiting(self, request: Request) -> None:
        """See `ProducerIO`."""
        self.calls.stop_waiting(request)

    async def close(self) -> None:
        """End the tasks and the calls."""
        self.background.close()
        await self.background.join(CLOSE_TIMEOUT_S)
        await self.connections.close()


def _ended(ended: "Ended", task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    if task.cancelled():
        ended(None, cancelled_call())
    elif error is not None:
        ended(None, error_of(error))
    else:
        ended(task.result(), None)
