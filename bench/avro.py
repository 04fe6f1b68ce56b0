"""`python -m bench.avro`: Avro and JSON values of twenty fields, read as Arrow columns and record by record.

The rows are those of `bench.typed`. Prints a line of JSON for each case and round; seconds of the processor are those
of the reading process.
"""

from __future__ import annotations

import json
import struct
import time
from typing import Annotated, Any

import headrace
import pyarrow as pa
import typer
from headrace import schemas
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from bench.typed import BATCH_BYTES, json_values, rows_of

AVRO, JSON = "avro", "json"
_TYPES = {
    pa.int64(): "long",
    pa.float64(): ["null", "double"],
    pa.string(): "string",
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
}
_JSON_TYPES = {pa.int64(): "integer", pa.float64(): "number", pa.string(): "string"}


def main(
    rows: Annotated[int, typer.Option(help="Rows.", min=1_000)] = 200_000,
    rounds: Annotated[int, typer.Option(help="Rounds of all cases.", min=1)] = 3,
) -> None:
    """Measure how fast values with a registered schema are read."""
    table = rows_of(rows)
    fields = [{"name": field.name, "type": _TYPES[field.type]} for field in table.schema]
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
        servers = cluster.bootstrap_servers
        registry = schemas.SchemaRegistry(cluster.schema_registry_urls[0])
        schema = {"type": "record", "name": "Row", "fields": fields}
        avro = schemas.Avro(registry, schema, subject=AVRO, auto_register=True)
        numbers = table.set_column(table.num_columns - 1, "ts", table["ts"].cast(pa.int64()))
        properties = {field.name: {"type": _JSON_TYPES[field.type]} for field in numbers.schema}
        of_json = {"type": "object", "properties": properties, "required": list(properties)}
        header = struct.pack(">bI", 0, registry.register(JSON, json.dumps(of_json), "JSON"))
        codecs = {AVRO: avro, JSON: schemas.JsonSchema(registry, of_json)}
        with headrace.Admin(bootstrap_servers=servers) as admin:
            for topic in codecs:
                admin.create_topic(topic, partitions=1)
        with headrace.Producer(bootstrap_servers=servers, batch_bytes=BATCH_BYTES) as producer:
            producer.send_many(AVRO, [avro.serialize(row) for row in table.to_pylist()])
            producer.send_many(JSON, [header + value.as_py() for value in json_values(numbers)])

        def as_columns(reader: Any) -> int:
            return int(reader.to_arrow().num_rows)

        def record_by_record(reader: Any) -> int:
            return sum(record.value is not None for record in reader)

        cases = [(topic, run) for topic in codecs for run in (as_columns, record_by_record)]
        for turn in range(rounds):
            for topic, run in cases:
                started, used = time.perf_counter(), time.process_time()
                with headrace.Reader(topic, bootstrap_servers=servers, value_deserializer=codecs[topic]) as reader:
                    assert run(reader) == rows
                took, used = time.perf_counter() - started, time.process_time() - used
                figures = {
                    "round": turn,
                    "case": f"{topic} {run.__name__}",
                    "rows/s": round(rows / took),
                    "rows/processor s": round(rows / used),
                }
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    typer.run(main)
