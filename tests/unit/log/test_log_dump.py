"""The dump tool shows a person what is on disk, and where it is corrupt."""

from __future__ import annotations

import json

import pytest
from headrace.log import DataDirectory, LogSettings
from headrace.log.dump import app
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from typer.testing import CliRunner


@pytest.fixture
def partition(tmp_path):
    directory = DataDirectory.open(
        str(tmp_path / "data"), cluster_id="c", generation=1, broker_id=1, new_storage_id=bytes(16)
    )
    log = directory.open_log(bytes(16), 0, LogSettings(index_interval_bytes=100))
    for number in range(4):
        batch = encode_batch([b"value-%d" % number] * 3, keys=[b"key"] * 3, base_timestamp_ms=number)
        log.append([(batch, read_header(batch))], leader_epoch=2, append_timestamp_ms=number)
    directory.close(clean=True)
    return tmp_path / "data" / log.directory.rpartition("/")[2]


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_partition_as_json_lines(partition):
    """Checkpoint, epochs, segment, batches and records, one JSON object a line."""
    code, output = run(partition, "--json", "--records")
    rows = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert [row["base_offset"] for row in rows if row["kind"] == "batch"] == [0, 3, 6, 9]
    assert [row["value"] for row in rows if row["kind"] == "record"][::3] == [f"value-{number}" for number in range(4)]
    assert next(row for row in rows if row["kind"] == "checkpoint")["flushed_offset"] == 12
    assert next(row for row in rows if row["kind"] == "epochs")["epochs"] == [[2, 0]]


def test_corrupt_batch_is_named_and_the_exit_code_is_1(partition):
    """The first bad byte position is printed."""
    path = partition / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    size = len(data) // 4
    data[size + 90] ^= 1
    path.write_bytes(data)
    code, output = run(path)
    assert code == 1
    assert f"at byte {size}" in output
    (partition / f"{12:020d}.log").write_bytes(b"")
    assert run(partition)[0] == 1, "a sound segment behind it does not hide the corruption"


@pytest.mark.parametrize(("suffix", "field"), [("index", "relative_offset"), ("timeindex", "covered_offset")])
def test_index_is_shown_and_a_corrupt_one_is_said_to_be_so(partition, suffix, field):
    """Entries of an index; exit code 1 where its CRC is wrong."""
    path = partition / f"{0:020d}.{suffix}"
    code, output = run(path)
    assert code == 0
    assert field in output
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert run(path)[0] == 1


def test_anything_else_is_exit_code_2(partition):
    """Not one of our files."""
    assert run(partition / "checkpoint")[0] == 2
