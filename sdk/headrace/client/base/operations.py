"""What a client does, written once for the blocking and asyncio classes: generators that yield what to wait for.

An `Operation` yields steps: a `Call`, a `Pause` or another one that its caller runs. It is resumed with the result, or
with the exception, which is raised at the `yield`. It holds the decisions (which server to call, what to retry, when to
stop); `execute` does the waiting on a thread, `aexecute` on an event loop. Operations compose by `yield from`.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from headrace.client.base.request_ids import request_id_scope

Result = TypeVar("Result")

Operation: TypeAlias = Generator[Any, Any, Result]
"""Yields steps, is sent their results, and returns its own."""


class Call(NamedTuple):
    """One RPC. Answered with its response, or with the call itself where the method streams.

    Raises at the `yield`:
        grpc.RpcError: it failed.
        ClosedError: the client was closed before or meanwhile.
    """

    address: str
    """host:port"""
    service: str
    """`broker`, `cluster`, `groups` or `process`: which service of that address."""
    method: str
    request: Any
    timeout: float
    """In seconds."""


class StartCall(NamedTuple):
    """Begin an RPC. Answered with its future; for blocking clients alone."""

    call: Call


class Pause(NamedTuple):
    """Wait; answered with None."""

    seconds: float


class InvokeCallback(NamedTuple):
    """Call the application back; an asyncio client awaits what is awaitable. Answered with None."""

    callback: Callable[[Any], Any]
    argument: Any


class Changes(Protocol):
    """What wakes the waits of `WaitUntil`: a `threading.Condition`, or its equivalent on an event loop."""

    def notify(self, n: int = 1) -> None:
        """Let at least `n` of those who wait check their condition again; called with the lock."""

    def notify_all(self) -> None:
        """Let all who wait check their condition again; called with the lock."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> Any:
        """Wait until the predicate holds; return whether it does."""


class WaitUntil(NamedTuple):
    """Wait until a condition holds. Answered with whether it does."""

    changes: Any
    """`Changes`, which are notified whenever the condition may have changed."""
    condition: Callable[[], bool]
    seconds: float | None
    """`None` disables the limit."""


def execute(operation: Operation[Result], run_step: Callable[[Any], Any]) -> Result:
    """Run an operation to its end, under one request id; `run_step` does one step and blocks."""
    with request_id_scope():
        return execute_loop(operation, run_step)


def execute_loop(operation: Operation[Result], run_step: Callable[[Any], Any]) -> Result:
    """Run an operation without end as `execute` does, with a request id for each of its calls."""
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
    """Run an operation to its end, under one request id; `run_step` does one step and is awaited.

    Cancelling closes the operation where it waits.
    """
    with request_id_scope():
        return await aexecute_loop(operation, run_step)


async def aexecute_loop(operation: Operation[Result], run_step: Callable[[Any], Awaitable[Any]]) -> Result:
    """Run an operation without end as `aexecute` does, with a request id for each of its calls."""
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
