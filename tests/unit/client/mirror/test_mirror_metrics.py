"""Metrics and health of a worker of mirrors: what is exported, when it ends, and what probes are answered."""

import asyncio
import socket
import urllib.error
import urllib.request

import pytest
from headrace.client.mirror.endpoint import STALL_SECONDS, MirrorEndpoint
from headrace.client.mirror.metrics import MirrorCollector
from headrace.client.mirror.rows import (
    MirrorDescription,
    MirroredSubject,
    MirroredTopic,
    MirrorSettings,
    PartitionReport,
)
from prometheus_client import CollectorRegistry

SETTINGS = MirrorSettings({"bootstrap_servers": "west:7170"})


@pytest.fixture
def collector():
    return MirrorCollector()


@pytest.fixture
def value(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda name, **labels: registry.get_sample_value(f"headrace_mirror_{name}", {"mirror": "west", **labels})


def mirror(*topics, problem=""):
    return MirrorDescription("west", SETTINGS, "c", topics=list(topics), problem=problem)


def test_lag_and_problems_are_exported(collector, value):
    """Of each partition and topic; a lag that is not known is absent, and not 0."""
    late = PartitionReport(10, 17, 1_000, 63_500, "w0")
    stuck = PartitionReport(-1, -1, 0, 0, "w0", "the source does not respond")
    refused = MirroredTopic("clicks", problem="another topic has the name here")
    collector.report("west", mirror(MirroredTopic("orders", partitions={0: late, 1: stuck}), refused))
    assert value("lag_records", topic="orders", partition="0") == 7
    assert value("lag_seconds", topic="orders", partition="0") == 62.5
    assert value("lag_records", topic="orders", partition="1") is None
    assert [value("partition_failed", topic="orders", partition=each) for each in "01"] == [0, 1]
    assert [value("topic_refused", topic=each) for each in ("orders", "clicks")] == [0, 1]
    assert value("failed") == 0


def test_refused_subjects_are_exported_until_their_topic_is_promoted(collector, value):
    """A schema that is not here makes values undecodable; after the promotion the registry here is its own."""
    subjects = [MirroredSubject("orders-value", problem="id 7 is refused"), MirroredSubject("orders-key", True)]
    described = mirror(MirroredTopic("orders"))
    described.subjects = subjects
    collector.report("west", described)
    assert [value("subject_refused", subject=each.name) for each in subjects] == [1, 0]
    described.topics = [MirroredTopic("orders", is_promoted=True)]
    assert [value("subject_refused", subject=each.name) for each in subjects] == [None, None]


def test_a_mirror_that_cannot_begin_is_exported(collector, value):
    """A source that cannot be reached from the start has no partitions to report, and raises an alert all the same."""
    collector.report("west", mirror(problem="no coordinator of west:7170 answers"))
    assert value("failed") == 1


def test_promoted_topics_and_ended_mirrors_raise_no_alert(collector, value):
    """After a promotion nothing is behind, whatever the last reports were."""
    stuck = {0: PartitionReport(1, 9, 1, 1, "w0", "the source does not respond")}
    collector.report("west", mirror(MirroredTopic("orders", "", "gone", stuck, is_promoted=True)))
    assert value("partition_failed", topic="orders", partition="0") is None
    assert value("topic_refused", topic="orders") is None
    collector.report("west", None)
    assert value("failed") is None


def test_probes_see_a_blocked_event_loop(collector):
    """Health answers 200 while the loop runs, 503 when it does not; any other path has the metrics."""
    now = [0.0]

    async def run():
        endpoint = MirrorEndpoint(collector, lambda: now[0])
        async with endpoint.serving("127.0.0.1", 0) as port:

            def get(path):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                        return answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    return error.code, error.read()

            await asyncio.sleep(0)
            assert await asyncio.to_thread(get, "/health/liveness") == (200, b"ok\n")
            now[0] += STALL_SECONDS
            assert get("/health/readiness") == (503, b"the event loop is blocked\n")  # This call blocks it.
            assert b"headrace_mirror_failed" in (await asyncio.to_thread(get, "/metrics"))[1]
            endpoint.beat()
            assert await asyncio.to_thread(get, "/health/readiness") == (200, b"ok\n")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()

    asyncio.run(run())
