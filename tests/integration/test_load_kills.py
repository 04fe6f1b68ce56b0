"""Loads that follow a topic of a real cluster and are killed again and again: each record is in the table once.

tests/unit/client/loading/test_load_kills.py kills loads of a directory at lines of the code; here a kill finds fetches,
buffers, writes and compactions wherever they are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading

import headrace
import pyarrow as pa
import pytest
from headrace.client.loading.formats import LoadFormat, open_table
from pyarrow import dataset

from tests.children import running

from .replicated import until

KILLS = 20
PARTITIONS = 3
PARTS = 500
"""Records of one send."""
PAUSE_SECONDS = {"headrace load": 0.02, "spark_jobs.load": 0.2}
"""Time between sends: a load with Spark takes seconds to start, and all records are compared."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def load_command(loader, topic, where, table_format, servers):
    """Return the command that loads what there is."""
    if loader == "headrace load":
        command = ["headrace.cli", "load", topic, "--to", where]
    else:
        command = ["spark_jobs.load", "--topic", topic, "--table", where, "--master", "local[2]"]
    return [sys.executable, "-m", *command, "--format", table_format, "-q", "-b", servers]


def values(table, table_format):
    if table_format == "iceberg":
        rows = table._table().scan().to_arrow()
    else:
        rows = dataset.dataset([str(path) for path in table.data_files()]).to_table()
    return sorted(int(value) for value in pa.table(rows)["value"].to_pylist())


@pytest.mark.parametrize("loader", list(PAUSE_SECONDS))
@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_load_that_is_killed_twenty_times_has_each_record_once(
    headrace_cluster, topic_name, tmp_path, table_format, loader
) -> None:
    """At random moments after its first commit since the kill before; of Spark also Java is killed, or left behind."""
    servers, over = headrace_cluster.bootstrap_servers, threading.Event()
    seed = int(os.environ.get("HEADRACE_LOAD_SEED", str(random.randrange(1 << 30))))
    rng, sent = random.Random(seed), 0
    print("HEADRACE_LOAD_SEED =", seed)

    def send() -> None:
        nonlocal sent
        with headrace.Producer(bootstrap_servers=servers) as producer:
            while not over.wait(PAUSE_SECONDS[loader]):
                producer.send_many(topic_name, [b"%d" % (sent + n) for n in range(PARTS)], partition=sent % PARTITIONS)
                sent += PARTS

    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, PARTITIONS, config={"durability": "async"})
    where = tmp_path / "table"
    command = load_command(loader, topic_name, where, table_format, servers)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        table, rows = open_table(str(where), LoadFormat(table_format), "", is_typed=False), 0
        for _ in range(KILLS):
            with running([*command, "--follow", "--every", "0.2"], start_new_session=True) as process:
                rows = until(lambda rows=rows: (now := table.state().rows) > rows and now, "rows are committed", 120)
                over.wait(rng.uniform(0, 3 * PAUSE_SECONDS[loader] + 0.6))
                assert process.poll() is None
                if rng.random() < 0.5:
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        over.set()
        sender.join()
    with running(command) as last:
        assert last.wait(120) == 0
    assert values(table, table_format) == list(range(sent))
    print(sent, "records,", table.state().version, "commits")


@pytest.mark.parametrize(
    ("table_format", "place"),
    [("parquet", "directory"), ("delta", "directory"), ("delta", "bucket"), ("iceberg", "catalog")],
)
def test_a_load_with_spark_may_be_killed_at_each_step(
    headrace_cluster, topic_name, tmp_path, s3, lake, table_format, place
) -> None:
    """Where it writes files, copies them to the bucket, commits them with positions, and compacts: rows and positions
    agree after the kill, and after the next load each record is there once. Java runs on with the job."""
    servers = headrace_cluster.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, 2)
    where = {"directory": f"{tmp_path}/table", "bucket": "s3://lake/table", "catalog": "shop.table"}[place]
    catalog = lake if place == "catalog" else ""
    share = os.environ.get("HEADRACE_LOAD_SHARE", "3" if place == "directory" else "10")
    command = [sys.executable, "-m", "tests.integration.killed_spark_loads"]
    given = [table_format, where, catalog, tmp_path, servers, topic_name, share]
    done = subprocess.run([*command, *given], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(len(found["killed"]), "kills")
    assert found["problems"] == []
    files = {path.rpartition("/")[2] for path, _ in found["killed"]}
    assert {"topic_loading.py", f"{table_format}_table.py"} <= files
