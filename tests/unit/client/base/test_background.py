"""Operations side by side on one thread: each waits for its own step, and ends with its owner."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from headrace.client.base.background import BackgroundLoop, LongPollCall, WaitSignal
from headrace.client.base.background_async import AsyncBackgroundLoop
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Call, Pause
from headrace.client.base.request_ids import operation_metadata, request_id_scope

WAIT = 20
CALL = Call("b1:1", "broker", "Fetch", None, 1)


class Calls:
    """Calls that were started, each with the request id that it would carry."""

    def __init__(self):
        self.started = []
        self.arrived = threading.Semaphore(0)

    def start(self, call):
        future = Future()
        future.set_running_or_notify_cancel()
        future.cancelled_by_client = threading.Event()
        future.cancel = future.cancelled_by_client.set
        self.started.append((future, dict(operation_metadata()), threading.current_thread()))
        self.arrived.release()
        return future

    def next(self):
        assert self.arrived.acquire(timeout=WAIT)
        return self.started[-1]


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def loop(calls):
    loop = BackgroundLoop("headrace-test", calls.start)
    yield loop
    loop.close()
    loop.join(WAIT)
    assert not any(thread.name == "headrace-test" for thread in threading.enumerate())


def done():
    event = threading.Event()
    return event, lambda: event.wait(WAIT)


def test_a_call_that_waits_holds_up_no_other_operation(loop, calls):
    """The answer of the second comes first; both are resumed on one thread."""
    answers = []
    ended, wait = done()

    def asking(name):
        answers.append((name, (yield CALL), threading.current_thread()))
        if len(answers) == 2:
            ended.set()

    loop.spawn(asking("first"))
    first, _, _ = calls.next()
    loop.spawn(asking("second"))
    second, _, _ = calls.next()
    second.set_result(2)
    first.set_result(1)
    assert wait()
    assert [(name, answer) for name, answer, _ in answers] == [("second", 2), ("first", 1)]
    assert len({thread for *_, thread in answers}) == 1


def test_a_failed_call_raises_where_it_was_made(loop, calls):
    raised = []
    ended, wait = done()

    def asking():
        try:
            yield CALL
        except OSError as error:
            raised.append(error)
        ended.set()

    loop.spawn(asking())
    future, _, _ = calls.next()
    future.set_exception(OSError("no"))
    assert wait()
    assert str(raised[0]) == "no"


def test_a_wait_ends_with_its_signal_or_its_time(loop):
    """A signal that was set before the wait ends it too, until the operation clears it."""
    seen = []
    signal = loop.make_signal()
    ended, wait = done()
    first, wait_first = done()

    def waiting():
        yield WaitSignal(signal, WAIT)
        seen.append("set before")
        signal.clear()
        yield WaitSignal(signal, 0.001)
        seen.append("time")
        yield Pause(0.001)
        first.set()
        yield WaitSignal(signal, 10 * WAIT)
        seen.append("set after")
        ended.set()

    signal.set()
    loop.spawn(waiting())
    assert wait_first()
    signal.set()
    assert wait()
    assert seen == ["set before", "time", "set after"]


def test_a_signal_ends_a_long_poll_and_a_late_answer_is_dropped(loop, calls):
    answers = []
    signal = loop.make_signal()
    ended, wait = done()

    def polling():
        answers.append((yield LongPollCall(CALL, signal)))
        answers.append((yield LongPollCall(CALL, signal)))  # The signal is still set: no call.
        signal.clear()
        answers.append((yield LongPollCall(CALL, signal)))
        ended.set()

    loop.spawn(polling())
    first, _, _ = calls.next()
    signal.set()
    second, _, _ = calls.next()
    assert first.cancelled_by_client.wait(WAIT)
    first.set_result("late")
    second.set_result("in time")
    assert wait()
    assert answers == [None, None, "in time"]
    assert len(calls.started) == 2


def test_each_call_has_a_request_id_of_its_own_and_a_scope_gives_one_to_several(loop, calls):
    """Also where two operations take turns."""
    ended, wait = done()

    def asking():
        yield CALL
        with request_id_scope():
            yield CALL
            yield CALL
        ended.set()

    def other():
        with request_id_scope():
            while True:
                yield Pause(0)

    loop.spawn(other())
    loop.spawn(asking())
    ids = []
    for _ in range(3):
        future, metadata, _ = calls.next()
        ids.append(tuple(metadata.values()))
        future.set_result(None)
    assert wait()
    assert ids[0] != ids[1] == ids[2]


def test_cancelling_closes_an_operation_where_it_waits_and_its_call_with_it(loop, calls):
    closed, wait = done()

    def asking():
        try:
            yield CALL
        finally:
            closed.set()

    task = loop.spawn(asking())
    future, _, _ = calls.next()
    task.cancel()
    assert wait()
    assert future.cancelled_by_client.wait(WAIT)
    task.cancel()  # Again: nothing.


def test_who_waits_for_the_end_of_an_operation_is_told(loop):
    """Without a limit of time; an operation that is cancelled before its first step ends too."""

    def waiting():
        yield Pause(10 * WAIT)

    def wait_for_all():
        with loop.endings:
            loop.endings.wait_for(lambda: all(task.done() for task in tasks))

    tasks = [loop.spawn(waiting()), loop.spawn(waiting())]
    waiter = threading.Thread(target=wait_for_all, daemon=True)
    waiter.start()
    while not loop.endings._waiters:
        threading.Event().wait(0.001)
    for task in tasks:
        task.cancel()
    waiter.join(WAIT)
    assert not waiter.is_alive()


def test_an_operation_that_was_begun_within_another_has_request_ids_of_its_own(loop, calls):
    def asking():
        yield CALL

    with request_id_scope():
        (outer,) = dict(operation_metadata()).values()
        loop.spawn(asking())
    future, metadata, _ = calls.next()
    assert outer not in metadata.values()
    future.set_result(None)


def test_a_call_that_was_started_within_an_operation_has_a_request_id_of_its_own():
    seen = []
    loop = BackgroundLoop("headrace-test", lambda step: seen.append(operation_metadata()))
    with request_id_scope():
        outer = operation_metadata()
        for _ in range(2):
            loop.start(CALL, lambda answer, error: None)
    assert len({outer, *seen}) == 3


async def test_calls_of_tasks_that_were_started_within_an_operation_have_request_ids_of_their_own():
    """Also of one that the end of another starts, as fetches do."""
    seen, all_of_them = [], asyncio.Event()

    async def run_step(step):
        seen.append(operation_metadata())

    def end(answer, error):
        if len(seen) < 3:
            loop.start(CALL, end)
        else:
            all_of_them.set()

    def asking():
        yield CALL

    loop = AsyncBackgroundLoop("headrace-test", run_step)
    with request_id_scope():
        outer = operation_metadata()
        loop.spawn(asking())
        loop.start(CALL, end)
    async with asyncio.timeout(WAIT):
        await all_of_them.wait()
    await loop.join(WAIT)
    assert len({outer, *seen}) == 1 + len(seen)


def test_closing_the_loop_closes_every_operation(loop):
    closed = []
    begun = threading.Semaphore(0)

    def waiting(name):
        try:
            begun.release()
            yield Pause(10 * WAIT)
        finally:
            closed.append(name)

    for name in ("a", "b"):
        loop.spawn(waiting(name))
    assert begun.acquire(timeout=WAIT)
    assert begun.acquire(timeout=WAIT)
    loop.close()
    loop.join(WAIT)
    loop.close()
    loop.join(WAIT)
    assert sorted(closed) == ["a", "b"]


def test_an_operation_that_fails_is_logged_and_the_others_continue(loop, caplog):
    ended, wait = done()

    def failing(error):
        raise error
        yield

    def going_on():
        yield Pause(0.001)
        ended.set()

    loop.spawn(failing(RuntimeError("a bug")))
    loop.spawn(failing(ClosedError("Consumer")))
    loop.spawn(going_on())
    assert wait()
    (record,) = caplog.records
    assert "headrace-test" in record.message
    assert "a bug" in str(record.exc_info[1])


def test_a_call_that_cannot_be_started_raises_in_its_operation():
    """Where the connections are closed."""

    def refuse(_call):
        raise ClosedError("Consumer")

    loop = BackgroundLoop("headrace-test", refuse)
    raised = []
    ended, wait = done()

    def asking():
        try:
            yield CALL
        except ClosedError as error:
            raised.append(error)
        ended.set()

    loop.spawn(asking())
    assert wait()
    assert raised
    loop.close()
    loop.join(WAIT)


def test_a_call_is_started_without_a_wait():
    """The thread that receives the response reports it; an error in starting the call is its end."""
    started, ended = [], []

    def run_step(step):
        if len(started) == 1:
            raise ClosedError("Consumer")
        started.append(step)

    loop = BackgroundLoop("headrace-test", run_step)
    loop.start(CALL, lambda answer, error: ended.append((answer, error)))
    (begun,) = started
    assert (begun.call, ended) == (CALL, [])
    begun.ended("answer", None)
    assert ended == [("answer", None)]
    loop.start(CALL, lambda answer, error: ended.append((answer, type(error))))
    assert ended[1:] == [(None, ClosedError)]


async def test_a_call_on_a_loop_reports_its_end():
    ended = []

    async def run_step(step):
        if ended:
            raise ValueError("a step that fails")
        return step.method

    loop = AsyncBackgroundLoop("headrace-test", run_step)
    for _ in range(2):
        loop.start(CALL, lambda answer, error: ended.append((answer, type(error))))
        await loop.join(WAIT)
    assert ended == [(CALL.method, type(None)), (None, ValueError)]


async def test_the_end_of_tasks_waits_no_longer_than_it_may_for_one_that_does_not_end():
    """A callback of the application may take long to end after its cancellation."""
    gate, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run_step(step):
        begun.set()
        try:
            await gate.wait()
        finally:
            await gate.wait()
            ended.set()

    def calling():
        yield CALL

    loop = AsyncBackgroundLoop("headrace-test", run_step)
    loop.spawn(calling())
    await begun.wait()
    loop.close()
    async with asyncio.timeout(WAIT):
        await loop.join(0.01)
    assert not ended.is_set()
    gate.set()
    await loop.join(WAIT)
    assert ended.is_set()
