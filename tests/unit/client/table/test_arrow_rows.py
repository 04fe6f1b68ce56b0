"""Rows of a table as Arrow record batches."""

import pytest
from headrace.client.base.config import TableConfig, build
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.v1.tables_pb2 import TableColumn, TableRow
from headrace.wire.errors import InvalidRequestError

pa = pytest.importorskip("pyarrow")

from headrace.client.table import arrow_rows  # noqa: E402
from headrace.client.table.arrow_rows import ArrowRows  # noqa: E402


def form(columns=None, key_column="key", version_column=None, **settings):
    return ArrowRows(build(TableConfig, {"bootstrap_servers": "b:1", **settings}), columns, key_column, version_column)


def row(key, version, /, **columns):
    found = [TableColumn(name=name.encode(), value=value) for name, value in columns.items()]
    return TableRow(key=key, version=version, columns=found)


ROWS = [row(b"a", 4, y=b"1", x=b"2"), row(b"b", 5), row(b"\xff", 6, z="ü".encode())]


def test_absent_columns_are_null():
    """A batch has the columns of its rows in the order of their names; the key is binary, a value text."""
    batch = form().batch_of(ROWS)
    assert batch.schema.names == ["key", "x", "y", "z"]
    assert batch.schema.types == [pa.binary(), pa.string(), pa.string(), pa.string()]
    assert batch.to_pylist() == [
        {"key": b"a", "x": "2", "y": "1", "z": None},
        {"key": b"b", "x": None, "y": None, "z": None},
        {"key": b"\xff", "x": None, "y": None, "z": "ü"},
    ]


def test_named_columns_are_in_every_batch():
    batch = form(["w", "x"], "id", "version", value_deserializer="bytes").batch_of(
        [row(b"a", 4, x=b"\xff"), row(b"b", 5)]
    )
    assert batch.schema.names == ["id", "version", "w", "x"]
    assert batch.schema.types == [pa.binary(), pa.int64(), pa.binary(), pa.binary()]
    assert batch.column("version").to_pylist() == [4, 5]
    assert batch.column("x").to_pylist() == [b"\xff", None]


def test_batches_with_other_columns_become_one_table():
    """With the columns of all, also if there are no rows."""
    rows = form(version_column="v")
    assert rows.collected().schema.names == ["key", "v"]
    for part in (ROWS[2:], ROWS[:1]):
        rows.collect(rows.batch_of(part))
    table = rows.collected()
    assert table.schema.names == ["key", "v", "x", "y", "z"]
    assert table.column("x").to_pylist() == [None, "2"]
    assert form(["q"]).collected().schema.names == ["key", "q"]


def test_two_columns_of_one_name_are_refused():
    for arguments in ({"columns": ["key"]}, {"version_column": "key"}, {"columns": ["v"], "version_column": "v"}):
        with pytest.raises(ConfigError, match="two columns"):
            form(**arguments)
    with pytest.raises(ConfigError, match="two columns"):
        form().batch_of([row(b"a", 1, key=b"1")])
    assert form(key_column="id").batch_of([row(b"a", 1, key=b"1")]).schema.names == ["id", "key"]


def test_values_that_are_no_text_are_named():
    with pytest.raises(SerializationError, match=r"column 'x' of row b'b'"):
        form().batch_of([row(b"a", 1, x=b"1"), row(b"b", 1, x=b"\xff")])
    with pytest.raises(ConfigError, match="value_deserializer"):
        form(value_deserializer="json")


def test_columns_of_one_batch_are_bounded(monkeypatch):
    monkeypatch.setattr(arrow_rows, "MAX_COLUMNS", 2)
    with pytest.raises(InvalidRequestError, match="3 different columns"):
        form().batch_of(ROWS)
    assert form(["x", "y", "z"]).batch_of(ROWS).num_columns == 4
