"""Operations of a client, shared by the blocking and asyncio classes: generators that yield the steps to wait for.

An `Operation` yields steps: a `Call`, a `Pause` or another one that its caller runs. It is resumed with the result, or
with the exception, which is raised at the `yield`. It makes the decisions (which server to call, what to retry, when to
stop); `execute` waits on a thread, `aexecute` on an event loop. Operations compose by `yield from`.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.client.base.request_ids import request_id_scope
from headrace.wire.call_tries import CallTry

Result = TypeVar("Result")

Operation: TypeAlias = Generator[Any, Any, Result]
"""Yields steps, receives their results, and returns its own."""


class Call(NamedTuple):
    """One RPC. Its result is the response, or the call itself if the method streams.

    Raises at the `yield`:
        grpc.RpcError: The call failed.
        ClosedError: The client was closed before or during the call.
    """

    address: str
    """host:port"""
    service: str
    """Service at the address: `auth`, `broker`, `cluster`, `groups`, `process` or `session`."""
    method: str
    request: Any
    timeout: float
    """In seconds."""
    begun: Callable[[Any], None] | None = None
    """Called at most once, over the native protocol only: with a large response before its batches have arrived."""
    call_try: CallTry | None = None
    """Over gRPC only: the try of a call that is repeated elsewhere if there is no response."""


class StartCall(NamedTuple):
    """Start of an RPC, for blocking clients only. Its result is the future of the call."""

    call: Call


class BeginCall(NamedTuple):
    """Start of an RPC without a wait for it, for blocking clients only. The step's result is `None`."""

    call: Call
    ended: Callable[[Any, Exception | None], None]
    """Called once with the response, or with the error of the call: on any thread, or before the step has ended."""


class Pause(NamedTuple):
    """Wait for some seconds. Its result is `None`."""

    seconds: float


class InvokeCallback(NamedTuple):
    """Callback of the application; an asyncio client awaits its result if possible. The step's result is `None`."""

    callback: Callable[[Any], Any]
    argument: Any


class Changes(Protocol):
    """Condition variable for `WaitUntil`: a `threading.Condition`, or its equivalent on an event loop."""

    def notify(self, n: int = 1) -> None:
        """Wake at least `n` waiters, which check their condition again; called with the lock."""

    def notify_all(self) -> None:
        """Wake all waiters, which check their condition again; called with the lock."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> Any:
        """Wait until the predicate holds; return whether it does."""


class WaitUntil(NamedTuple):
    """Wait until a condition holds. Its result is whether the condition holds."""

    changes: Any
    """`Changes`, which are notified whenever the condition may have changed."""
    condition: Callable[[], bool]
    seconds: float | None
    """`None` disables the limit."""


def execute(operation: Operation[Result], run_step: Callable[[Any], Any]) -> Result:
    """Run an operation to its end under one request id; `run_step` runs one step and blocks."""
    with request_id_scope():
        return execute_loop(operation, run_step)


def execute_loop(operation: Operation[Result], run_step: Callable[[Any], Any]) -> Result:
    """Run an endless operation like `execute`, with a request id for each of its calls."""
    try:
        step = next(operation)
        while True:
            try:
                outcome = run_step(step)
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(outcome)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        operation.close()


async def aexecute(operation: Operation[Result], run_step: Callable[[Any], Awaitable[Any]]) -> Result:
    """Run an operation to its end under one request id; `run_step` runs one step and is awaited.

    Cancellation closes the operation at its current step.
    """
    with request_id_scope():
        return await aexecute_loop(operation, run_step)


async def aexecute_loop(operation: Operation[Result], run_step: Callable[[Any], Awaitable[Any]]) -> Result:
    """Run an endless operation like `aexecute`, with a request id for each of its calls."""
    try:
        step = next(operation)
        while True:
            try:
                outcome = await run_step(step)
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(outcome)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        operation.close()
