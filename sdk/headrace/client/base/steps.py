"""What a client does, written once for both shells: generators that yield what is to be waited for.

A generator of `Steps` yields a `Call`, a `Pause` or another step that its shell knows, and is resumed with what came of
it: the answer, or the exception raised at the `yield`. It holds the decisions (whom to ask, what to ask again, when to
stop); the shell does the waiting, blocking (`drive`) or on an event loop (`drive_async`). Generators compose by
`yield from`.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headrace.client.base.request_ids import operation

Result = TypeVar("Result")

Steps: TypeAlias = Generator[Any, Any, Result]
"""Yields steps, is sent what came of them, and returns its result."""


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
    starts: bool = False
    """Whether it is only started: answered with a future (blocking) or the call (asyncio), which can be cancelled."""


class Pause(NamedTuple):
    """Wait; answered with None."""

    seconds: float


def drive(steps: Steps[Result], perform: Callable[[Any], Any]) -> Result:
    """Run steps to their end, as one operation; `perform` does one and blocks."""
    with operation():
        return drive_on(steps, perform)


def drive_on(steps: Steps[Result], perform: Callable[[Any], Any]) -> Result:
    """As `drive`, of steps that go on and on: each of their calls is an operation by itself."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        steps.close()


async def drive_async(steps: Steps[Result], perform: Callable[[Any], Awaitable[Any]]) -> Result:
    """Run steps to their end, as one operation; `perform` does one and is awaited.

    Cancelling ends the steps where they wait.
    """
    with operation():
        return await drive_on_async(steps, perform)


async def drive_on_async(steps: Steps[Result], perform: Callable[[Any], Awaitable[Any]]) -> Result:
    """As `drive_on`, for `drive_async`."""
    try:
        step = next(steps)
        while True:
            try:
                outcome = await perform(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        steps.close()
