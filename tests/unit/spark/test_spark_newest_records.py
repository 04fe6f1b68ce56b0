"""The newest record of each key with bounded memory, against a dict."""

import random

import pyarrow as pa
import pytest
from headrace.spark.newest_records import NewestRecords

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64())])


def reduced(batches, memory_bytes):
    records = NewestRecords(SCHEMA, memory_bytes)
    held = []
    for batch in batches:
        records.add(batch)
        held.append(records._held_bytes)
    found = {}
    for batch in records.batches():
        for row in batch.to_pylist():
            assert row["key"] not in found
            found[row["key"]] = (row["value"], row["offset"])
    records.close()
    return found, max(held)


@pytest.mark.parametrize("keys", [1, 40, 3_000])
@pytest.mark.parametrize("memory_bytes", [200, 3_000, 1 << 30])
def test_any_records_are_those_of_a_dict(keys, memory_bytes):
    """In memory, in files, and in files of files; what is held stays near the limit."""
    draw, expected, batches, offset = random.Random(keys), {}, [], 0
    for _ in range(60):
        rows = []
        for _ in range(draw.randrange(1, 120)):
            offset += draw.randrange(1, 3)
            key = b"k%05d" % draw.randrange(keys)
            value = None if draw.random() < 0.2 else b"%d" % offset
            expected[key] = (value, offset)
            rows.append({"key": key, "value": value, "offset": offset})
        batches.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    found, held = reduced(batches, memory_bytes)
    assert found == expected
    assert held <= max(memory_bytes, 60 * (keys if keys < 3_000 else 0)) + 200


def test_no_records():
    assert reduced([pa.RecordBatch.from_pylist([], schema=SCHEMA)], 100)[0] == {}
