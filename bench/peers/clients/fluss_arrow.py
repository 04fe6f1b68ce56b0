"""Apache Fluss by pyfluss: Arrow batches into a log table of one bucket, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import fluss
import pyarrow as pa

from bench.peers.clients.loops import waited
from bench.peers.clients.task import Task, main

READY_SECONDS = 30
SCHEMA = pa.schema([pa.field("value", pa.binary())])


async def connect(task: Task) -> fluss.FlussConnection:
    """Return a connection with default settings: an idempotent writer, which all replicas acknowledge, here one.

    A tablet server listens before it knows the coordinator, without which there is no administration. The time is
    bounded for each call, too: one that has no answer would otherwise wait for ever, and print nothing.
    """
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with suppress(fluss.FlussError):
                server = fluss.Config({"bootstrap.servers": f"127.0.0.1:{task.port}"})
                connection = await fluss.FlussConnection.create(server)
                await connection.get_admin().list_databases()
                return connection
            await asyncio.sleep(0.1)


async def sending(task: Task) -> AsyncIterator[int]:
    """Write record batches of 10,000 to a new table without compression; flush at the end."""
    connection, path = await connect(task), fluss.TablePath("fluss", task.topic)
    admin = connection.get_admin()
    await admin.drop_table(path, ignore_if_not_exists=True)
    properties = {"table.log.arrow.compression.type": "NONE"}
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, properties=properties)
    await admin.create_table(path, descriptor)
    writer = (await connection.get_table(path)).new_append().create_writer()
    yield 0
    sent = 0
    for chunk in task.chunks():
        writer.write_arrow_batch(pa.RecordBatch.from_arrays([pa.array(chunk, pa.binary())], schema=SCHEMA))
        sent += len(chunk)
        yield sent
    await writer.flush()


async def receiving(task: Task) -> AsyncIterator[int]:
    """Poll record batches from the start."""
    connection = await connect(task)
    table = await connection.get_table(fluss.TablePath("fluss", task.topic))
    scanner = await table.new_scan().create_record_batch_log_scanner()
    yield 0
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen = 0
    while seen < task.records:
        seen += sum(found.batch.num_rows for found in await scanner.poll_record_batch(10_000))
        yield seen


if __name__ == "__main__":
    main({"in": waited(sending), "out": waited(receiving)})
