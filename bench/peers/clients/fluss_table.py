"""Rows of twenty columns in Apache Fluss by pyfluss: the cases of `bench.typed` that it has.

Arguments: port of the tablet server, file with the rows in Arrow's IPC format, rounds. Prints a line of JSON for each
case and round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import fluss
import pyarrow as pa

from bench.peers.clients.fluss_arrow import connect
from bench.peers.clients.task import Task

TABLE = fluss.TablePath("fluss", "typed")
TWO = ["i0", "s0"]


async def measure(port: int, path: str, rounds: int) -> None:
    """Write the rows, and read all columns and two, in each round from a new table."""
    with pa.OSFile(path) as file:
        rows = pa.ipc.open_stream(file).read_all()
    connection = await connect(Task("", port, "", rows.num_rows))

    async def write() -> None:
        writer = (await connection.get_table(TABLE)).new_append().create_writer()
        for batch in rows.to_batches(max_chunksize=10_000):
            writer.write_arrow_batch(batch)
        await writer.flush()

    async def read(columns: list[str]) -> None:
        scan = (await connection.get_table(TABLE)).new_scan()
        scanner = await (scan.project_by_name(columns) if columns else scan).create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        seen = 0
        while seen < rows.num_rows:
            seen += sum(found.batch.num_rows for found in await scanner.poll_record_batch(10_000))

    cases: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("write of a table", write),
        ("all columns to Arrow", lambda: read([])),
        ("two of twenty to Arrow", lambda: read(TWO)),
    ]
    properties = {"table.log.arrow.compression.type": "NONE"}
    descriptor = fluss.TableDescriptor(fluss.Schema(rows.schema), bucket_count=1, properties=properties)
    for turn in range(rounds):
        await connection.get_admin().drop_table(TABLE, ignore_if_not_exists=True)
        await connection.get_admin().create_table(TABLE, descriptor)
        for name, run in cases:
            started = time.perf_counter()
            await run()
            rate = round(rows.num_rows / (time.perf_counter() - started))
            print(json.dumps({"round": turn, "case": f"Fluss: {name}", "rows a second": rate}), flush=True)


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
