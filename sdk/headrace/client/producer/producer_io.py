"""I/O layer of a blocking producer: its channels, Produce calls, background thread and waits. Any thread.

The end of a call is processed on gRPC's thread, which starts the next call.
"""

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from headrace.client.base.background import BackgroundLoop
from headrace.client.base.config import ProducerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Pause
from headrace.client.base.request_ids import metadata_of
from headrace.client.net.transport import open_connections
from headrace.client.producer.partition_queue import Request
from headrace.client.producer.produce_calls import ProduceCalls
from headrace.client.producer.produce_rpc import GRACE_MS, error_of, grpc_produce_request
from headrace.client.producer.sender import Landed

if TYPE_CHECKING:
    import grpc

    from headrace.client.net.sessions import Ended

CLOSE_TIMEOUT_S = 1.0
"""Time limit of `close` for the background thread, which never blocks long."""


class BlockingProducerIO:
    """Implementation of `ProducerIO` with threads. Owned by one producer."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.connections = open_connections("Producer", config)
        self.background = BackgroundLoop("headrace-producer", self.connections.run_step)
        self.calls = ProduceCalls(config, self.connections.native, self.connections.sessions, self._start_grpc)
        """Calls in flight."""
        self._is_closed = threading.Event()

    def make_lock(self) -> threading.Lock:
        """See `ProducerIO`."""
        return threading.Lock()

    def start(self, request: Request, landed: Landed) -> None:
        """See `ProducerIO`."""
        self.calls.start(request, landed)

    def _start_grpc(self, request: Request, token: str, ended: "Ended") -> "grpc.Future[Any]":
        try:
            call = self.connections.endpoint(request.address).produce.future(
                grpc_produce_request(request, self._config),
                timeout=(request.timeout_ms + GRACE_MS) / 1000,
                metadata=metadata_of(request.request_id, token),
            )
        except ValueError as error:  # grpc raises it for a channel that was closed in the meantime
            raise ClosedError("Producer") from error
        call.add_done_callback(partial(_ended, ended))
        return cast("grpc.Future[Any]", call)

    def cancel(self, request: Request) -> None:
        """See `ProducerIO`."""
        self.calls.cancel(request)

    def stop_waiting(self, request: Request) -> None:
        """See `ProducerIO`."""
        self.calls.stop_waiting(request)

    def run_step(self, step: Any) -> Any:
        """Run one step of an operation; a pause ends with the producer."""
        if isinstance(step, Pause):
            return self._is_closed.wait(step.seconds)
        return self.connections.run_step(step)

    def close(self) -> None:
        """End pauses, the background thread and the calls."""
        self._is_closed.set()
        self.background.close()
        self.background.join(CLOSE_TIMEOUT_S)
        self.connections.close()


def _ended(ended: "Ended", call: "grpc.Future[Any]") -> None:
    try:
        response = call.result()
    except Exception as error:
        ended(None, error_of(error))
    else:
        ended(response, None)
