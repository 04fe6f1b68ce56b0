"""Where requests come from: blocks of a topic, tables of blocks, rows; and which trace is analysed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from headrace.cli.bench.models import ETC
from headrace.wire.request_trace import ALL_KEYS, TraceBlock, TraceColumns, encode_block
from spark_jobs.trace_analysis.requests import (
    DTYPES,
    TableTrace,
    TraceCollector,
    TracedRequests,
    TraceError,
    chosen_trace,
    read_parquet,
)

from tests.unit.spark_jobs.trace_parts import START_US, drawn

_, REQUESTS = drawn(ETC, 500)


def block(start: int, end: int, table: str = "users", threshold: int = ALL_KEYS, table_id: bytes = bytes(16)) -> bytes:
    """Return some of the requests as a block."""
    part = [column[start:end] for column in REQUESTS]
    base = int(part[1].min())
    columns = TraceColumns(part[0], (part[1] - base).astype(np.uint32), *part[2:])
    return encode_block(TraceBlock(table, table_id, 1, base, threshold, 2 * (end - start), 1, columns))


def same(one: TracedRequests, other: TracedRequests) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_blocks_become_requests_in_order_of_time() -> None:
    """Those of a table, whatever the order of its blocks; others and damaged ones are counted apart."""
    collector = TraceCollector()
    for value in (block(300, 500), block(0, 300), block(0, 9, "orders"), b"", None, b"no block"):
        collector.add(value)
    assert collector.damaged == 3
    trace = chosen_trace(collector.traces.values(), "users", "a topic")
    assert trace == TableTrace("users", ALL_KEYS, 2, 500, 1_000, 2)
    assert same(collector.requests(trace), REQUESTS)


def test_a_block_that_was_written_twice_counts_once() -> None:
    """A server writes a block again whose acknowledgement was lost; the trace says how many there were."""
    collector = TraceCollector()
    for value in (block(0, 300), block(300, 500), block(0, 300), block(0, 300)):
        collector.add(value)
    trace = chosen_trace(collector.traces.values(), None, "a topic")
    assert trace == TableTrace("users", ALL_KEYS, 2, 500, 1_000, 2, repeated_blocks=2)
    assert same(collector.requests(trace), REQUESTS)


def test_a_table_of_blocks_and_a_table_of_rows_are_the_same(tmp_path: Path) -> None:
    """As `spark_jobs.load` writes them, files of a directory among others; or the columns themselves."""
    blocks = tmp_path / "loaded" / "event_hour=2023-11-15-00"
    blocks.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"value": [block(0, 200), block(200, 500)]}), blocks / "a.parquet")
    (tmp_path / "loaded" / "_headrace").mkdir()
    (tmp_path / "loaded" / "_headrace" / "manifest.json").write_text("{}")
    columns = dict(zip(DTYPES, map(pa.array, REQUESTS), strict=True))
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "users.parquet")
    for path in (tmp_path / "loaded", tmp_path / "users.parquet"):
        collector = TraceCollector()
        read_parquet(path, collector, None)
        trace = chosen_trace(collector.traces.values(), None, str(path))
        assert (trace.table, trace.fraction, trace.requests) == ("users", 1.0, 500)
        assert same(collector.requests(trace), REQUESTS)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """The message names the columns that are missing."""
    pyarrow.parquet.write_table(pa.table({"key_hash": [1], "at_us": [START_US]}), tmp_path / "x.parquet")
    with pytest.raises(TraceError, match="neither a column value with trace blocks nor the columns gap_us, latency_us"):
        read_parquet(tmp_path / "x.parquet", TraceCollector(), None)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("outcome", pa.array([7, 0]), "the column outcome of .* has a number that is not from 0 to 6"),
        ("operation", pa.array([9, 1]), "operation .* not from 1 to 5"),
        ("value_bytes", pa.array([-1, 5]), "value_bytes .* not from 0 to 4294967295"),
        ("key_bytes", pa.array([1 << 16, 5]), "key_bytes .* not from 0 to 65535"),
        ("at_us", pa.array([-1, 5]), "at_us .* not from 0 to"),
        ("at_us", pa.array([START_US, None]), "the column at_us of .* has nulls"),
        ("gap_us", pa.array([1.5, 2.0]), "the column gap_us of .* has the type double; it takes whole numbers"),
    ],
)
def test_rows_that_are_no_requests_are_refused(tmp_path: Path, name: str, values: pa.Array, message: str) -> None:
    """The message names the column, and what it may have."""
    columns = {column: pa.array(part[:2]) for column, part in zip(DTYPES, REQUESTS, strict=True)}
    pyarrow.parquet.write_table(pa.table(columns | {name: values}), tmp_path / "x.parquet")
    with pytest.raises(TraceError, match=message):
        read_parquet(tmp_path / "x.parquet", TraceCollector(), None)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_rows_have_signed_hashes_and_timestamps_as_well(tmp_path: Path, unit: str) -> None:
    """As Spark writes them, which has no unsigned numbers; a timestamp of any unit is microseconds."""
    columns = dict(zip(DTYPES, map(pa.array, REQUESTS), strict=True))
    columns["key_hash"] = pa.array(REQUESTS.key_hash.view(np.int64))
    columns["at_us"] = pa.array(REQUESTS.at_us, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "users.parquet")
    collector = TraceCollector()
    read_parquet(tmp_path / "users.parquet", collector, None)
    found = collector.requests(chosen_trace(collector.traces.values(), None, "a file"))
    assert sorted(found.key_hash.tolist()) == sorted(REQUESTS.key_hash.tolist())
    step = 1_000 if unit == "ms" else 1
    assert found.at_us.tolist() == (REQUESTS.at_us // step * step).tolist()


def test_only_the_requests_of_the_wanted_table_are_held() -> None:
    """Those of other tables are counted, so that an error can name them."""
    collector = TraceCollector("users")
    for value in (block(0, 100), block(0, 9, "orders")):
        collector.add(value)
    held = {trace.table: (trace.requests, len(collector.requests(trace).at_us)) for trace in collector.traces.values()}
    assert held == {"users": (100, 100), "orders": (9, 0)}


def test_a_sample_that_was_changed_is_analysed_where_it_has_most_requests() -> None:
    """Keys of one fraction at a time: those of another seem to begin or end with the change."""
    collector = TraceCollector()
    for value in (block(0, 100, threshold=1 << 30), block(100, 500)):
        collector.add(value)
    trace = chosen_trace(collector.traces.values(), None, "a topic")
    assert (trace.fraction, trace.requests) == (1.0, 400)
    assert len(collector.requests(trace).at_us) == 400
    assert [(other.fraction, other.requests) for other in trace.left_out] == [(0.25, 100)]


def test_tables_of_one_name_are_not_one_table() -> None:
    """A table that was deleted and created again has other hashes for its keys; the trace says what is left out."""
    collector = TraceCollector()
    for value in (block(0, 100, table_id=b"a" * 16), block(100, 500, table_id=b"b" * 16), block(0, 9, "orders")):
        collector.add(value)
    trace = chosen_trace(collector.traces.values(), "users", "a topic")
    assert (trace.table_id, trace.requests) == (b"b" * 16, 400)
    assert len(collector.requests(trace).at_us) == 400
    assert [(other.table_id, other.requests) for other in trace.left_out] == [(b"a" * 16, 100)]


def test_the_table_is_the_only_one_or_the_one_that_is_named() -> None:
    """Otherwise the message says which there are."""
    traces = [TableTrace("users", ALL_KEYS, requests=5), TableTrace("orders", ALL_KEYS, requests=9)]
    assert chosen_trace(traces, "users", "a topic").table == "users"
    for found, table, message in (
        (traces, None, "traces of 2 tables; choose one by --table: orders, users"),
        (traces, "items", "no trace of the table items; it has orders, users"),
        ([], None, "a topic has no trace of a table"),
        ([TableTrace("users", ALL_KEYS)], None, "a topic has no trace of a table"),
    ):
        with pytest.raises(TraceError, match=message):
            chosen_trace(found, table, "a topic")
