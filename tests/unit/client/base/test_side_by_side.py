"""Operations that run side by side: their calls are in flight together, in the blocking and in the asyncio class."""

import asyncio
import threading

import pytest
from headrace.client.base.operations import BeginCall, Call, Pause
from headrace.client.base.request_ids import operation_request_id
from headrace.client.base.side_by_side import SideBySide
from headrace.client.base.side_by_side_async import AsyncSideBySide
from headrace.wire.errors import NotLeaderError


def calls(name, closed=None):
    """Make two calls and a pause between them; the second follows an error."""
    try:
        try:
            yield Call("b:1", "tables", "GetRows", f"{name} refused", 1.0)
        except NotLeaderError:
            yield Pause(0.001)
        return (yield Call("b:1", "tables", "GetRows", name, 1.0))
    finally:
        if closed is not None:
            closed.append(name)


def one_call(name):
    return (yield Call("b:1", "tables", "GetRows", name, 1.0))


def answer_to(request):
    if "refused" in request:
        raise NotLeaderError(request)
    if "broken" in request:
        raise ValueError(request)
    return f"answer to {request}"


class Held:
    """Calls in flight, which a blocking client answers when `release` says so, on another thread."""

    def __init__(self):
        self.requests = []
        self._begun = []

    def run_step(self, step):
        assert isinstance(step, BeginCall)
        self.requests.append(step.call.request)
        self._begun.append(step)

    def release(self):
        def answer():
            begun, self._begun = self._begun, []
            for step in reversed(begun):
                try:
                    step.ended(answer_to(step.call.request), None)
                except Exception as error:
                    step.ended(None, error)

        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()


class Answering(Held):
    """Calls that are answered before the step has ended."""

    def run_step(self, step):
        super().run_step(step)
        self.release()


def test_calls_are_in_flight_before_anyone_waits():
    """Each operation sends its first call when it is started, and all continue while one is awaited."""
    held = Held()
    side_by_side = SideBySide(held.run_step)
    started = [side_by_side.start(one_call(name)) for name in ("a", "b", "c")]
    assert held.requests == ["a", "b", "c"]
    held.release()
    assert [side_by_side.result(each) for each in started] == ["answer to a", "answer to b", "answer to c"]


def test_operations_continue_while_another_is_awaited():
    """The retry of one is sent while the caller waits for another."""
    answering = Answering()
    side_by_side = SideBySide(answering.run_step)
    first, second = side_by_side.start(calls("a")), side_by_side.start(calls("b"))
    assert side_by_side.result(second) == "answer to b"
    assert side_by_side.result(first) == "answer to a"
    assert sorted(answering.requests) == ["a", "a refused", "b", "b refused"]


def test_an_error_is_raised_where_its_operation_is_awaited():
    """The others have their results."""
    side_by_side = SideBySide(Answering().run_step)
    broken, other = side_by_side.start(one_call("broken")), side_by_side.start(one_call("a"))
    assert side_by_side.result(other) == "answer to a"
    with pytest.raises(ValueError, match="broken"):
        side_by_side.result(broken)


def test_a_close_ends_what_is_left():
    closed = []
    side_by_side = SideBySide(Held().run_step)
    side_by_side.start(calls("a", closed))
    side_by_side.close()
    assert closed == ["a"]


def test_each_operation_has_a_request_id():
    """It keeps the id over its calls, and leaves no id behind in the context of the caller."""
    ids = {}

    def run_step(step):
        ids.setdefault(step.call.request[0], []).append(operation_request_id())
        try:
            step.ended(answer_to(step.call.request), None)
        except NotLeaderError as error:
            step.ended(None, error)

    side_by_side = SideBySide(run_step)
    for started in [side_by_side.start(calls(name)) for name in ("a", "b")]:
        side_by_side.result(started)
    assert {name: len(set(seen)) for name, seen in ids.items()} == {"a": 1, "b": 1}
    assert ids["a"] != ids["b"]
    assert operation_request_id() != operation_request_id()


def test_the_asyncio_class_does_the_same():
    async def main():
        in_flight, most, closed = 0, 0, []
        answered = asyncio.Event()

        async def run_step(step):
            nonlocal in_flight, most
            if isinstance(step, Pause):
                return await asyncio.sleep(0)
            in_flight += 1
            most = max(most, in_flight)
            if in_flight == 2:
                answered.set()
            await answered.wait()
            in_flight -= 1
            return answer_to(step.request)

        side_by_side = AsyncSideBySide(run_step)
        first, second = side_by_side.start(calls("a")), side_by_side.start(calls("b"))
        assert await side_by_side.result(second) == "answer to b"
        assert await side_by_side.result(first) == "answer to a"
        assert most == 2
        answered.clear()
        waiting = side_by_side.start(calls("c", closed))
        await asyncio.sleep(0)
        side_by_side.close()
        with pytest.raises(asyncio.CancelledError):
            await side_by_side.result(waiting)
        assert closed == ["c"]

    asyncio.run(main())
