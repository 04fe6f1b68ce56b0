"""Program that kills loads with Spark: `killed_spark_loads.py FORMAT PLACE CATALOG DIRECTORY SERVERS TOPIC SHARE`.

Each load follows the topic in a forked child, which gets SIGKILL at one line of what writes, copies, commits and
compacts, reached for the first time; Java stays, with the job that it runs. Then another child compares the table with
its positions, loads to the end and compares it with the topic. It prints one JSON object: the lines, and what was
wrong. This process itself uses no clients and no tables, so that it can be forked.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import headrace
import pyarrow
from headrace.client.loading import load_target
from headrace.client.loading.formats import LoadFormat, open_table
from headrace.client.loading.tables import compaction
from pyarrow import parquet
from spark_jobs.load_options import Load
from spark_jobs.progress import ProgressLine
from spark_jobs.session import spark_session

from spark_jobs import topic_loading
from tests.unit.client.loading.killed_loads import LOADING, in_child, steps_of

STEPS = {"_commit", "_write", "_prepare", "write_rows", "copy_files", "prepare", "commit", "_compact", "compact"}
"""Functions at whose lines loads are killed: files are written, copied and committed with positions, and compacted."""
SPARK_JOBS = str(Path(topic_loading.__file__).parent)
ROWS = 10
TRIES = 4
"""Loads until one reaches a line: not each of them compacts."""


def is_step(code):
    return code.co_name in STEPS and code.co_filename.startswith((LOADING, SPARK_JOBS))


class Loads:
    """Loads of a topic into tables of one place, one after the other."""

    def __init__(self, spark, table_format, place, catalog, directory, servers, topic):
        self._spark, self._format, self._catalog = spark, LoadFormat(table_format), catalog
        self._place, self._directory, self._servers, self._topic = place, Path(directory), servers, topic
        self._tables = itertools.count()
        self._sent = 0
        self.renew()

    def renew(self):
        """Load into a new table from now on."""
        number = next(self._tables)
        self._table = f"{self._place}{number}"
        self._staging = self._directory / f"staging{number}" if self._catalog or "://" in self._place else None

    def send(self):
        """Send further records."""

        def send():
            with headrace.Producer(bootstrap_servers=self._servers) as producer:
                for number in range(self._sent, self._sent + ROWS):
                    producer.send(self._topic, b"%d" % number, partition=number % 2)
            return "sent"

        assert in_child(send) == "sent"
        self._sent += ROWS

    def follow(self):
        """Load what there is, and end as by Ctrl-C."""
        # The connections of the parent are in use by other children.
        self._spark.sparkContext._gateway._gateway_client.deque.clear()

        def report(_commit):
            raise KeyboardInterrupt

        wanted = Load(
            self._topic,
            self._table,
            self._servers,
            self._format,
            catalog=self._catalog,
            staging=self._staging,
            every=0.01,
        )
        topic_loading.load_topic(self._spark, wanted, ProgressLine(quiet=True), report)

    def _numbers(self, table):
        if self._format is LoadFormat.PARQUET:
            rows = [value for path in table.data_files() for value in parquet.read_table(path)["value"].to_pylist()]
        elif self._format is LoadFormat.DELTA:
            rows = pyarrow.table(table._log().to_pyarrow_table())["value"].to_pylist()
        else:
            rows = table._table().scan().to_arrow()["value"].to_pylist()
        return sorted(map(int, rows))

    def wrong(self):
        """Load to the end; return what is wrong with the table, or an empty text."""
        found = in_child(self._wrong_after_kill)
        if not found:
            self.send()
            found = in_child(self._wrong_after_load)
        return found

    def _wrong_after_kill(self):
        table = open_table(self._table, self._format, self._catalog)
        ends = table.state().positions
        held = self._numbers(table) if ends else []
        if held != [number for number in range(self._sent) if number // 2 < ends.get(str(number % 2), 0)]:
            return f"after the kill: positions {dict(ends)} and {len(held)} rows"
        return ""

    def _wrong_after_load(self):
        self.follow()
        held = self._numbers(open_table(self._table, self._format, self._catalog))
        if held != list(range(self._sent)):
            return f"after the next load: {len(held)} rows, {len(set(held))} different, of {self._sent}"
        return ""

    def killed_at(self, step):
        """Kill a load at a step; return what was wrong, `None` if no load reached it."""
        for _ in range(TRIES):
            self.send()
            said = in_child(lambda: steps_of(self.follow, step, is_step) and "not killed")
            if said is None:
                return self.wrong()
            if said != "not killed":
                return said
        return None


def main(table_format, place, catalog, directory, servers, topic, share):
    load_target.COMPACTION_FILES, compaction.GROUP_FILES = 1, 3
    pyarrow.set_cpu_count(1)
    with spark_session("kills", "local[1]") as spark:
        loads = Loads(spark, table_format, place, catalog, directory, servers, topic)
        steps = []
        for _ in range(compaction.GROUP_FILES + 1):
            loads.send()
            steps.append(in_child(lambda: steps_of(loads.follow, None, is_step)))
        first = [tuple(step) for step in steps[0]]
        later = list(dict.fromkeys(tuple(step) for each in steps[1:] for step in each))
        at_first = [step for step in first if step not in later]
        problems, killed = [], []
        for step in [*at_first, *later][:: int(share)]:
            if step in at_first:
                loads.renew()
            began = time.monotonic()
            found = loads.killed_at(step)
            print(step, found, f"{time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
            if found is not None:
                killed.append(step)
            if found != "":
                problems.append([step, found])
    print(json.dumps({"killed": killed, "problems": problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
