"""What a reading task of Spark holds in memory is bounded by options, whatever the partition's size."""

import json
import os
import subprocess
import sys

import headrace

MiB = 1024 * 1024
VALUE_BYTES = 1_000
RECORDS = 120_000
PREFETCH_BYTES = 4 * MiB
FETCH_BYTES = 2 * MiB
SLACK_BYTES = 56 * MiB
"""Arrow batches in the making, gRPC's copies of an answer, what the allocator keeps: 30 to 45 MiB were seen."""


def test_a_task_holds_what_its_options_allow_and_not_its_partition(headrace_cluster, topic_name):
    """A partition of 120 MB, `headrace.prefetch.bytes` of 4 MiB, a slow consumer: half of it would not fit."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, partitions=1, replication_factor=1, config={"durability": "async"})
    block = os.urandom(VALUE_BYTES * 1_000)
    values = [block[start : start + VALUE_BYTES] for start in range(0, len(block), VALUE_BYTES)]
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for _ in range(RECORDS // len(values)):
            producer.send_many(topic_name, values)
    options = {
        "headrace.bootstrap.servers": servers,
        "subscribe": topic_name,
        "headrace.prefetch.bytes": str(PREFETCH_BYTES),
        "headrace.fetch.max.bytes": str(FETCH_BYTES),
        "headrace.max.partition.fetch.bytes": str(FETCH_BYTES),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.spark_memory_task", json.dumps(options), "0", "1000", str(RECORDS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == RECORDS
    assert found["growth"] < PREFETCH_BYTES + FETCH_BYTES + SLACK_BYTES, found
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(topic_name)
