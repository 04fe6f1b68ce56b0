"""What tests of a deployment ask of it from outside, by the SDK."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import headrace

SECONDS = 180.0
API_KEY_FILE = "HEADRACE_TEST_API_KEY_FILE"
"""Variable with the file of an API key, where the deployment requires one."""


def clients(servers: str) -> dict[str, str]:
    """Settings of every client."""
    return {"bootstrap_servers": servers, "api_key_file": os.environ.get(API_KEY_FILE, "")}


def until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> float:
    """Look again until it is so; return after how many seconds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - begun


def values(servers: str, topic: str) -> list[bytes]:
    """All records that are there now, in no order."""
    with headrace.Admin(**clients(servers)) as admin:
        ends = sum(each.offset for each in admin.list_offsets(topic, at="latest").values())
    found: list[bytes] = []
    with headrace.Consumer(topic, **clients(servers), auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + SECONDS
        while len(found) < ends and time.monotonic() < deadline:
            found += [record.value or b"" for record in consumer.poll(timeout=1.0)]
    assert len(found) == ends
    return found


def in_sync(servers: str, topic: str) -> bool:
    """All three replicas of each partition are in sync."""
    with headrace.Admin(**clients(servers)) as admin:
        return all(len(partition.in_sync_replicas) == 3 for partition in admin.describe_topic(topic).partitions)
