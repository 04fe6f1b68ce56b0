"""Print the files of a log in readable form: `python -m headrace.log.dump PATH`.

PATH is a segment (`.log`), one of its indexes (`.index`, `.timeindex`), or the directory of a partition, which prints
its checkpoint, leader epochs and segments. It changes nothing, takes no lock and needs no cluster, so it works on a
copy, on a quarantined directory, and on the files of a running broker (whose last batch may be incomplete).

Exit code `0` means that all batches are valid, `1` that at least one is corrupt, `2` that PATH is not a file of a log.
It is the only module of this package that needs `headrace[cli]`.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.log.checkpoint import CHECKPOINT_FILE, CheckpointFile, read_sealed
from headrace.log.epochs import EPOCHS_FILE, decode_epochs
from headrace.log.index import read_index_file
from headrace.log.os_filesystem import OsFileSystem
from headrace.log.segment import INDEX_SUFFIXES, LOG_SUFFIX, segment_names
from headrace.wire.batch import HEADER_BYTES, BatchFlags, BatchHeader, Codec, check_batch, read_header
from headrace.wire.columns import decode_batch
from headrace.wire.errors import HeadraceError

UNBOUNDED = 2**31 - 1
app = typer.Typer(add_completion=False)


@app.command()
def dump(
    path: Annotated[
        Path, typer.Argument(help="A segment or index file, or the directory of a partition.", exists=True)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    records: Annotated[bool, typer.Option("--records", help="The records of each batch too.")] = False,
) -> None:
    """Print a segment or a partition, check every CRC, and print where corruption begins."""
    if path.is_dir():
        rows = _dump_partition(path, records)
    elif path.suffix == LOG_SUFFIX:
        rows = _dump_segment(path, records)
    elif path.suffix in INDEX_SUFFIXES:
        rows = _dump_index(path)
    else:
        print(
            f"error: {path} is no segment (.log), no index (.index, .timeindex) and no directory of a partition",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    corrupt = False
    for row in rows:
        corrupt = corrupt or row["kind"] == "corruption"
        print(json.dumps(row) if as_json else _line(row))
    raise typer.Exit(1 if corrupt else 0)


def _dump_partition(directory: Path, records: bool) -> Iterator[dict[str, Any]]:
    filesystem = OsFileSystem()
    names = filesystem.list_directory(str(directory))
    if CHECKPOINT_FILE in names:
        checkpoint = CheckpointFile(filesystem, str(directory)).read()
        yield {"kind": "checkpoint", **(_checkpoint_row(checkpoint) if checkpoint else {"state": "corrupt"})}
    content = read_sealed(filesystem, f"{directory}/{EPOCHS_FILE}")
    history = None if content is None else decode_epochs(content)
    if history is not None:
        yield {"kind": "epochs", "epochs": [list(entry) for entry in history.entries()]}
    for name in segment_names(names):
        yield from _dump_segment(directory / f"{name.stem}{LOG_SUFFIX}", records)


def _checkpoint_row(checkpoint: Any) -> dict[str, Any]:
    return {
        "log_start_offset": checkpoint.log_start_offset,
        "high_watermark": checkpoint.high_watermark,
        "flushed_offset": checkpoint.mark.offset,
        "flushed_segment": checkpoint.mark.segment,
        "flushed_position": checkpoint.mark.position,
    }


def _dump_segment(path: Path, records: bool) -> Iterator[dict[str, Any]]:
    size_bytes = path.stat().st_size
    yield {"kind": "segment", "file": str(path), "size_bytes": size_bytes}
    if size_bytes == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = 0
        while position < size_bytes:
            try:
                header = read_header(content[position : position + HEADER_BYTES])
                end = position + header.batch_bytes
                batch = content[position:end]
                check_batch(batch, max_batch_bytes=size_bytes, max_records=UNBOUNDED, max_payload_bytes=UNBOUNDED)
            except HeadraceError as error:
                yield {"kind": "corruption", "file": str(path), "position": position, "reason": error.message}
                return
            yield _batch_row(header, position)
            if records:
                yield from _record_rows(batch)
            position = end


def _dump_index(path: Path) -> Iterator[dict[str, Any]]:
    content = read_index_file(OsFileSystem(), str(path))
    if content is None:
        yield {
            "kind": "corruption",
            "file": str(path),
            "position": 0,
            "reason": "a CRC or the size is wrong; it is rebuilt",
        }
        return
    yield {"kind": "index", "file": str(path), **(content._asdict() | {"entries": len(content.entries)})}
    names = (
        ("max_append_ms", "max_record_ms", "position")
        if path.suffix == ".timeindex"
        else ("relative_offset", "position")
    )
    for entry in content.entries:
        yield {"kind": "entry", **dict(zip(names, entry, strict=True))}


def _batch_row(header: BatchHeader, position: int) -> dict[str, Any]:
    return {
        "kind": "batch",
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.end_offset - 1,
        "record_count": header.record_count,
        "batch_bytes": header.batch_bytes,
        "payload_bytes": header.payload_bytes,
        "codec": Codec(header.codec).name.lower(),
        "flags": [flag.name.lower() for flag in BatchFlags if flag.name and header.flags & flag],
        "leader_epoch": header.leader_epoch,
        "append_timestamp_ms": header.append_timestamp_ms,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "previous_crc": f"{header.previous_crc:08x}",
        "crc": f"{header.crc:08x}",
    }


def _record_rows(batch: bytes) -> Iterator[dict[str, Any]]:
    columns = decode_batch(batch, max_payload_bytes=UNBOUNDED)
    rows = zip(
        columns.offsets(), columns.timestamps(), columns.keys(), columns.values(), columns.headers(), strict=True
    )
    for offset, timestamp_ms, key, value, headers in rows:
        yield {
            "kind": "record",
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "key": _text(key),
            "value": _text(value),
            "headers": [[name, _text(content)] for name, content in headers],
        }


def _text(data: bytes | None) -> str | None:
    """Return bytes as text; bytes that are not UTF-8 are escaped."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _line(row: dict[str, Any]) -> str:
    match row["kind"]:
        case "segment":
            return f"segment {row['file']}: {row['size_bytes']:,} bytes"
        case "batch":
            when = datetime.fromtimestamp(row["append_timestamp_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
            producer = ""
            if row["producer_id"] >= 0:
                producer = f" producer {row['producer_id']}/{row['producer_epoch']} sequence {row['base_sequence']}"
            flags = f" {','.join(row['flags'])}" if row["flags"] else ""
            return (
                f"  @{row['position']} offsets {row['base_offset']}..{row['last_offset']}"
                f" ({row['record_count']} records)"
                f" {row['batch_bytes']:,} bytes {row['codec']}{flags} epoch {row['leader_epoch']}{producer}"
                f" appended {when} crc {row['crc']}"
            )
        case "record":
            key = "" if row["key"] is None else f"{row['key']} = "
            return f"    {row['offset']}: {key}{row['value']}"
        case "corruption":
            return f"CORRUPTION in {row['file']} at byte {row['position']}: {row['reason']}"
        case kind:
            return f"{kind} " + " ".join(f"{name}={value}" for name, value in row.items() if name != "kind")


if __name__ == "__main__":
    app()
