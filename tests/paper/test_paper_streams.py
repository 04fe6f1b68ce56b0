"""Section 6 of the paper: utilities for streams as functions over any topic, by the example of docs/guides/jobs.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import headrace
import pytest

NOON_MS = 1_700_049_600_000
"""2023-11-15 12:00 UTC."""
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "jobs.md"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def topics(spark_cluster, topic_name) -> Iterator[tuple[str, str]]:
    """Two topics, which are deleted afterwards."""
    names = f"{topic_name}-a", f"{topic_name}-b"
    with headrace.Admin(bootstrap_servers=spark_cluster.bootstrap_servers) as admin:
        for name in names:
            admin.create_topic(name, partitions=2, replication_factor=1)
        yield names
        for name in names:
            admin.delete_topic(name)


def test_section_6_windows_and_joins_are_functions_over_any_topic(spark, spark_cluster, topics) -> None:
    """Section 6: a library of stream utilities, such as windowing functions and joins: as frames, not only as a job."""
    servers = spark_cluster.bootstrap_servers
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for topic, minutes in zip(topics, ((0, 0.5, 1, 90), (0.25, 2, 100, 200)), strict=True):
            for number, minute in enumerate(minutes):
                at_ms = NOON_MS + int(minute * 60_000)
                producer.send(topic, b"%d" % number, key=b"k", timestamp_ms=at_ms)
    (example,) = re.findall(r"```python\n(from spark_jobs.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    program = example.replace("localhost:7170", servers)
    for name, topic in zip(('"shown"', '"clicked"'), topics, strict=True):
        assert name in program
        program = program.replace(name, repr(topic))
    found = {"spark": spark}
    exec(program, found)
    assert sorted((row.start.strftime("%H:%M"), row.key, row.records) for row in found["by_minute"].collect()) == [
        ("12:00", "k", 2), ("12:01", "k", 1), ("13:30", "k", 1),
    ]  # fmt: skip
    assert sorted((row.start.strftime("%H:%M"), row.records) for row in found["sessions"].collect()) == [
        ("12:00", 2), ("13:40", 1), ("15:20", 1),
    ]  # fmt: skip
    pairs = {row.id: row.clicked_at and row.clicked_at.strftime("%H:%M:%S") for row in found["pairs"].collect()}
    assert pairs == {"0": "12:00:15", "1": "12:02:00", "2": None, "3": None}
