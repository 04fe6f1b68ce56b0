"""`headrace load --follow` of a real cluster that is killed again and again while records are sent: each is there once.

tests/unit/client/loading/test_load_kills.py kills loads of a directory at lines of the code; here a kill finds fetches,
buffers, writes and compactions wherever they are.
"""

from __future__ import annotations

import os
import random
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def values(table, table_format):
    if table_format == "iceberg":
        rows = table._table().scan().to_arrow()
    else:
        rows = dataset.dataset([str(path) for path in table.data_files()]).to_table()
    return sorted(int(value) for value in pa.table(rows)["value"].to_pylist())


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_load_that_is_killed_twenty_times_has_each_record_once(
    headrace_cluster, topic_name, tmp_path, table_format
) -> None:
    """At random moments after its first commit since the kill before."""
    servers, over = headrace_cluster.bootstrap_servers, threading.Event()
    seed = int(os.environ.get("HEADRACE_LOAD_SEED", str(random.randrange(1 << 30))))
    rng, sent = random.Random(seed), 0
    print("HEADRACE_LOAD_SEED =", seed)

    def send() -> None:
        nonlocal sent
        with headrace.Producer(bootstrap_servers=servers) as producer:
            while not over.wait(0.02):
                producer.send_many(topic_name, [b"%d" % (sent + n) for n in range(PARTS)], partition=sent % PARTITIONS)
                sent += PARTS

    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, PARTITIONS, config={"durability": "async"})
    where = tmp_path / "table"
    command = [sys.executable, "-m", "headrace.cli", "load", topic_name, "--to", where, "--format", table_format]
    sender = threading.Thread(target=send)
    sender.start()
    try:
        table, rows = open_table(str(where), LoadFormat(table_format), "", is_typed=False), 0
        for _ in range(KILLS):
            with running([*command, "--follow", "--every", "0.2", "-q", "-b", servers]) as process:
                rows = until(lambda rows=rows: (now := table.state().rows) > rows and now, "rows are committed")
                over.wait(rng.uniform(0, 0.6))
                assert process.poll() is None
    finally:
        over.set()
        sender.join()
    with running([*command, "-q", "-b", servers]) as last:
        assert last.wait(120) == 0
    assert values(table, table_format) == list(range(sent))
    print(sent, "records,", table.state().version, "commits")
