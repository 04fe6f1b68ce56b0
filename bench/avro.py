"""`python -m bench.avro`: Avro values of twenty fields, read as Arrow columns and record by record.

The rows are those of `bench.typed`. Prints a line of JSON for each case and round; seconds of the processor are those
of the reading process.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import headrace
import pyarrow as pa
import typer
from headrace import schemas
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.typed import BATCH_BYTES, rows_of

TOPIC = "avro"
_TYPES = {
    pa.int64(): "long",
    pa.float64(): ["null", "double"],
    pa.string(): "string",
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}


def main(
    rows: Annotated[int, typer.Option(help="Rows.", min=1_000)] = 200_000,
    rounds: Annotated[int, typer.Option(help="Rounds of all cases.", min=1)] = 3,
) -> None:
    """Measure how fast Avro values are read."""
    table = rows_of(rows)
    fields = [{"name": field.name, "type": _TYPES[field.type]} for field in table.schema]
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        servers = cluster.bootstrap_servers
        registry = schemas.SchemaRegistry(cluster.schema_registry_urls[0])
        schema = {"type": "record", "name": "Row", "fields": fields}
        codec = schemas.Avro(registry, schema, subject=TOPIC, auto_register=True)
        with headrace.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(TOPIC, partitions=1)
        with headrace.Producer(bootstrap_servers=servers, batch_bytes=BATCH_BYTES) as producer:
            producer.send_many(TOPIC, [codec.serialize(row) for row in table.to_pylist()])

        def as_columns(reader: Any) -> int:
            return int(reader.to_arrow().num_rows)

        def record_by_record(reader: Any) -> int:
            return sum(record.value is not None for record in reader)

        for turn in range(rounds):
            for run in (as_columns, record_by_record):
                started, used = time.perf_counter(), time.process_time()
                with headrace.Reader(TOPIC, bootstrap_servers=servers, value_deserializer=codec) as reader:
                    assert run(reader) == rows
                took, used = time.perf_counter() - started, time.process_time() - used
                figures = {
                    "round": turn,
                    "case": run.__name__,
                    "rows/s": round(rows / took),
                    "rows/processor s": round(rows / used),
                }
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    typer.run(main)
