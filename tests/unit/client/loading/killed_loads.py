"""Program that kills loads: `python killed_loads.py FORMAT DIRECTORY SHARE`.

Each load runs in a forked child, which gets SIGKILL at one line of the loading code, reached for the first time; then a
second child loads to the end and compares the table with the topic. It prints one JSON object: the lines, and what was
wrong. This process itself uses no threads, so that it can be forked.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path

import deltalake  # noqa: F401  # What children import takes them no time.
import headrace
import pyarrow
import pyarrow.parquet
from headrace.client.loading import columns, formats, load, load_target, progress, row_writer, topic_load  # noqa: F401
from headrace.client.loading.tables import compaction, delta_table, iceberg_table, parquet_table  # noqa: F401

# What is synced survives a power failure; here only processes are killed.
os.fsync = lambda _: None
LOADING = str(Path(load.__file__).parent)
ROWS = 12
EARLIER_LOADS = compaction.GROUP_FILES - 1
"""With these, the load that is killed compacts their files and its own."""


def in_child(action):
    """Run `action` in a fork; return what it wrote to the file that it is given, `None` if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            said = json.dumps(action())
        except BaseException:
            said = json.dumps(traceback.format_exc())
        with os.fdopen(writing, "w") as stream:
            stream.write(said)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def loads(table_format, log, table, **options):
    return load.load("clicks", to=str(table), format=table_format, bootstrap_servers=f"dir:{log}", **options)


def send(log, first, count):
    with headrace.open(log) as opened:
        opened.admin.create_topic("clicks", partitions=2, exist_ok=True)
        with opened.producer() as producer:
            for number in range(first, first + count):
                producer.send("clicks", b"%d" % number, partition=number % 2)


def prepare(table_format, log, table):
    """Load in many commits, each of a file."""
    for number in range(EARLIER_LOADS):
        send(log, number * ROWS, ROWS)
        loads(table_format, log, table)
    send(log, EARLIER_LOADS * ROWS, ROWS)


def is_loading(code):
    """Return whether a function is one of the loading code."""
    return code.co_filename.startswith(LOADING)


def steps_of(action, kill_at=None, is_traced=is_loading):
    """Run `action` and return the lines of the traced code that it reaches, each once; kill the process at one."""
    steps = []
    seen = set()

    def trace(frame, event, _argument):
        if not is_traced(frame.f_code):
            return None
        if event == "line":
            step = (frame.f_code.co_filename.removeprefix(LOADING), frame.f_lineno)
            if step not in seen:
                seen.add(step)
                steps.append(step)
                if kill_at is not None and step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(None)
    return steps


def wrong(table_format, log, table):
    """Load to the end; return what is wrong with the table, or an empty text."""
    found = formats.open_table(str(table), formats.LoadFormat(table_format), "", is_typed=False)
    positions = found.state().positions
    held = numbers_of(found)
    expected = [
        number for number in range((EARLIER_LOADS + 1) * ROWS) if number // 2 < positions.get(str(number % 2), 0)
    ]
    if held != expected:
        return f"after the kill: positions {dict(positions)} and {len(held)} rows"
    loads(table_format, log, table)
    held = numbers_of(found)
    if held != list(range((EARLIER_LOADS + 1) * ROWS)):
        return f"after the next load: {len(held)} rows, {len(set(held))} different"
    left = list((table / "_headrace" / "attempts").iterdir())
    if left:
        return f"left behind: {left}"
    if table_format == "parquet":
        plain = [path for path in table.rglob("*.parquet") if "_headrace" not in path.parts]
        if numbers_in(plain) != held:
            return f"a reader of the directory sees {len(numbers_in(plain))} rows"
    return ""


def numbers_of(table):
    return numbers_in(table.data_files())


def numbers_in(paths):
    values = [
        value for path in paths for value in pyarrow.parquet.ParquetFile(path).read(["value"])["value"].to_pylist()
    ]
    return sorted(map(int, values))


def main(table_format, directory, share):
    pyarrow.set_cpu_count(1)
    directory = Path(directory)
    log, table, copy = directory / "log", directory / "table", directory / "copy"
    said = in_child(lambda: prepare(table_format, log, table) or "prepared")
    assert said == "prepared", said

    def again(action):
        """Run `action` on the table as it was, at the same path, which Iceberg keeps absolute."""
        shutil.rmtree(table)
        shutil.copytree(copy, table)
        return in_child(action)

    shutil.copytree(table, copy)
    steps = again(lambda: steps_of(lambda: loads(table_format, log, table)))
    problems = []
    killed = 0
    chosen = [tuple(step) for step in steps[:: int(share)]]
    for step in chosen:
        said = again(lambda step=step: steps_of(lambda: loads(table_format, log, table), step) and "not killed")
        killed += said is None
        if said is not None:
            problems.append([step, said])
        elif found := in_child(lambda: wrong(table_format, log, table)):
            problems.append([step, found])
    print(json.dumps({"steps": chosen, "killed": killed, "problems": problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
