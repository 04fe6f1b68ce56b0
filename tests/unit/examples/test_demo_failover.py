"""What the demo measures of a failover is what happened, and a demo that ends takes its parts along."""

import threading
from types import SimpleNamespace

import pytest
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.errors import ClusterNotHealthyError
from rich.console import Console

from examples.demo.failover import AcknowledgementTimes, Failover, silence_end_ns
from examples.demo.waiting import StoppedError, wait_until

KILLED = 1_000


@pytest.mark.parametrize(
    ("acknowledged", "now", "end"),
    [
        pytest.param([900, 4_000, 4_100], 4_200, 4_000, id="the first of the new leader"),
        pytest.param([900, 1_005, 1_020, 4_000, 4_100], 4_200, 4_000, id="late news of the old leader do not count"),
        pytest.param([1, 990, 1_300], 1_400, 1_300, id="a silence before the kill does not count"),
        pytest.param([4_100, 4_000, 1_020], 4_200, 4_000, id="in whatever order they came"),
        pytest.param([900, 1_020], 4_200, None, id="only the old leader so far"),
        pytest.param([900], 4_200, None, id="nothing since"),
        pytest.param([], 1_000, None, id="no time has passed"),
    ],
)
def test_the_silence_ends_with_the_new_leaders_first_acknowledgement(
    acknowledged: list[int], now: int, end: int | None
) -> None:
    """The time without a leader ends with the acknowledgement after the longest silence since the kill."""
    assert silence_end_ns(acknowledged, KILLED, now) == end


def future(partition: int, error: Exception | None = None) -> SimpleNamespace:
    where = SimpleNamespace(topic="t", partition=partition)
    return SimpleNamespace(exception=lambda _timeout: error, result=lambda _timeout: where)


def test_only_what_was_delivered_is_an_acknowledgement() -> None:
    """A batch that failed is none; each partition has its own times, in order."""
    acknowledgements = AcknowledgementTimes({"t": 2})
    for done in (future(1), future(1), future(0, RuntimeError("not delivered"))):
        acknowledgements.note(done)  # type: ignore[arg-type]
    times = acknowledgements.times_ns("t", 1)
    assert len(times) == 2
    assert times == sorted(times)
    assert acknowledgements.times_ns("t", 0) == []


def test_a_demo_that_ends_early_kills_no_broker() -> None:
    """Stopped before its time, the thread ends without a broker killed, and the waiter for the kill continues."""
    stop = threading.Event()
    failover = Failover(LocalCluster(), ["t"], AcknowledgementTimes({"t": 1}), Console(), lease_ttl_ms=3_000, stop=stop)
    failover.start()
    stop.set()
    failover.end()
    failover.strike()
    assert (failover.report, failover.error) == (None, None)


def test_a_kill_that_fails_lets_the_sender_continue() -> None:
    """The sender waits for the kill and not for its success; the error is kept for the caller."""
    cluster = LocalCluster()
    failover = Failover(
        cluster, ["t"], AcknowledgementTimes({"t": 1}), Console(), lease_ttl_ms=3_000, stop=threading.Event()
    )
    failover.start()
    failover.strike()
    failover.end()
    assert failover.error is not None


def test_waiting_ends_in_time_and_when_it_is_stopped() -> None:
    """What does not come is an error that says what; a stop is none of the cluster's faults."""
    stop = threading.Event()
    answers = iter([False, True])
    wait_until(lambda: next(answers), "the second answer", stop)
    with pytest.raises(ClusterNotHealthyError, match="a miracle: not within 0 s"):
        wait_until(lambda: False, "a miracle", stop, timeout_seconds=0)
    stop.set()
    with pytest.raises(StoppedError):
        wait_until(lambda: False, "a miracle", stop)
