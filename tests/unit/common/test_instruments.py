"""Instruments that one thread writes say what the library's own would."""

import pytest
from headrace_server.instruments import CommonMetrics, LoopCounter, LoopHistogram
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

BOUNDS = (0.001, 0.25, 1.0)


def test_a_loop_histogram_equals_the_librarys():
    """The same observations, on bounds, between and beyond them, give the same exposition."""
    disable_created_metrics()
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    loop = LoopHistogram("x_seconds", "Times", ours, bounds=BOUNDS, label="stage", values=("a", "b"))
    library = Histogram("x_seconds", "Times", ["stage"], buckets=BOUNDS, registry=theirs)
    for stage, seconds in (("a", 0.0), ("a", 0.001), ("a", 0.0011), ("b", 0.25), ("b", 1.0), ("b", 7.5)):
        loop.series(stage).observe(seconds)
        library.labels(stage).observe(seconds)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_loop_counter_equals_the_librarys():
    """It ends in _total."""
    disable_created_metrics()
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    LoopCounter("x_bytes", "Bytes", ours).inc(12)
    Counter("x_bytes", "Bytes", registry=theirs).inc(12)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_name_is_taken_once():
    """A second instrument of a name is a bug that shows at the start."""
    registry = CollectorRegistry()
    CommonMetrics("headrace_x", registry)
    with pytest.raises(ValueError, match="Duplicated"):
        CommonMetrics("headrace_x", registry)
