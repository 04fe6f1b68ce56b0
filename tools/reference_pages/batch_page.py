"""Generator of docs/reference/batch-format.md: the tables from the docstrings, and a small batch byte by byte."""

from __future__ import annotations

import struct

from headrace.wire import batch, columns
from headrace.wire.batch import HEADER, HEADER_BYTES, BatchFlags, BatchHeader, Codec, check_batch, read_header
from headrace.wire.encoding import encode_batch
from headrace.wire.typed import column_types, payload, selection, topic_columns

from reference_pages.markdown import docstring, table

_FLAGS = {
    BatchFlags.KEYS: "the batch has columns of keys",
    BatchFlags.NULL_VALUES: "a value is null: the batch has `value_validity`",
    BatchFlags.NULL_KEYS: "a key is null: the batch has `key_validity`",
    BatchFlags.RECORD_TIMESTAMPS: "each record has its own timestamp",
    BatchFlags.HEADERS: "the batch has columns of headers",
    BatchFlags.TRANSACTIONAL: "reserved for transactions; the batch has a producer id",
    BatchFlags.CONTROL: "reserved for control records",
    BatchFlags.COMPACTED: "compaction has made it of several batches; never in a produced batch",
    BatchFlags.TYPED: "the values are rows of a typed topic: the payload is another one, see below",
    BatchFlags.REMOVED: "of a compacted batch: the payload has `removed`",
}
_CODECS = {
    Codec.NONE: "-",
    Codec.LZ4: "`headrace[lz4]`",
    Codec.ZSTD: "`headrace[zstd]`",
    Codec.GZIP: "none: in Python's standard library",
}

_INTRO = """# Record batch format

A record batch is the unit that a producer sends, a broker stores and a reader fetches: a header of 80 bytes and a
payload of columns. Producers encode it; the leader checks all of it once and stores it unchanged; readers decode it.
Version 1; `batch-v1.bin`, `batch-v1-compacted.bin` and `batch-v1-typed.bin` in `tests/golden` pin it."""

_RULES = """## Checks

The leader checks a batch once, before the append (`headrace.wire.batch.check_batch`, then
`headrace.wire.columns.check_columns`):

1. `batch_bytes` is the received length, a multiple of 8, within the topic's `max_batch_bytes`.
2. `stamp_crc` and `crc` are correct.
3. The codec is known, `record_count` is at least 1 and within the limit, `payload_bytes` is within the limit.
4. `4 * (record_count + 1) <= payload_bytes`, except in a typed batch; without compression `payload_bytes` is the stored
   size.
5. Reserved flags are 0, the final padding is zero, timestamps and producer fields agree with each other.
6. Timestamps are within the years 1 to 9999, and as near to the broker's clock as the topic requires.
7. A compressed payload decompresses to exactly `payload_bytes`, at most 1,000 times its stored bytes. A thread
   decompresses it; all decompressed payloads of a broker have at most 64 MiB at a time.
8. The columns are those of the flags: offsets ascend from 0 and end where their data ends, validity bitmaps have
   no bits past `n`, gaps are zero, the names of headers are UTF-8, no record has more than 1,000 headers and no batch
   more than 1,000,000; the smallest and greatest timestamps are the header's.
9. Of a typed batch: the checksums of the directory and of every block, their sizes, and that the columns are those of
   the topic (`headrace.wire.typed.topic_columns.writable`), and null_count of a required one is 0. The values in the
   blocks are not looked at: a producer must refuse text that is not UTF-8, decimals with more digits than their type
   has, and times that are not within a day.

Every reader can decode a batch that passes, and whose producer did so. A topic with `validate=header` omits
decompression and columns (7 and 8). Followers check both checksums.

A reader repeats the checks, except for the ratio of 7, and decompresses at most `payload_bytes` bytes
and at most its own `max_payload_bytes`. A batch that fails raises `CorruptBatchError` with the offset behind the batch
(`next_offset`), or is skipped or written to a dead-letter topic, depending on the reader's `on_corrupt_batch`.

The leader writes the stamp (the first 32 bytes). A produced batch has `base_offset` 0, `append_timestamp_ms` 0,
`leader_epoch` -1, `previous_crc` 0 and a valid `stamp_crc`. `previous_crc` chains the batches of a log: each contains
the chain value of the preceding one, so that an old block behind a new one is detected although its checksums are
correct."""


def batch_body() -> str:
    """Return the page from its title."""
    assert set(_FLAGS) == set(BatchFlags)
    assert set(_CODECS) == set(Codec)
    flags = [(f"{flag.value:#06x}", f"`{flag.name}`", meaning) for flag, meaning in _FLAGS.items()]
    codecs = [(codec.value, f"`{codec.name.lower()}`", extra) for codec, extra in _CODECS.items()]
    return "\n\n".join(
        [
            _INTRO,
            "## Header",
            docstring(batch),
            "### Flags",
            table(("bit", "name", "when set"), [*flags, ("13-15", "-", "a number: the zero bytes at the end")]),
            "### Codecs",
            "The payload is compressed as a whole, that of a typed batch by column. `payload_bytes` is its size before "
            "compression.",
            table(("number", "name", "extra to install"), codecs),
            "## Payload",
            docstring(columns),
            "## Payload of a typed batch",
            docstring(payload),
            "### Parts of a typed batch",
            docstring(selection),
            "### Columns of a topic",
            docstring(topic_columns),
            "### Types of columns",
            docstring(column_types),
            _RULES,
            "## Overhead",
            _overhead(),
            "## Example",
            'Two records, keyless, uncompressed, at timestamp 1,300,000,000,000: `b"tick"` and `b"tock!"`.',
            _example(),
        ]
    )


def _overhead() -> str:
    rows = []
    for count in (1, 10, 50, 1_000, 10_000):
        values = [b"v" * 200] * count
        encoded = encode_batch(values, base_timestamp_ms=0)
        rows.append((f"{count:,}", f"{len(encoded):,}", f"{(len(encoded) - 200 * count) / count:.2f}"))
    text = "Values of 200 bytes, without keys, own timestamps or headers, uncompressed."
    return f"{text}\n\n{table(('records', 'bytes of the batch', 'bytes of overhead per record'), rows)}"


def _example() -> str:
    encoded = encode_batch([b"tick", b"tock!"], base_timestamp_ms=1_300_000_000_000)
    header = check_batch(encoded, max_batch_bytes=1 << 20, max_records=10, max_payload_bytes=1 << 20)
    assert header == read_header(encoded)
    lines = ["```text", "offset bytes                     field"]
    position = 0
    for name, code in zip(BatchHeader._fields, HEADER.format.lstrip("<"), strict=True):
        size = struct.calcsize("<" + code)
        lines.append(_line(encoded, position, size, f"{name} = {getattr(header, name)}"))
        position += size
    assert position == HEADER_BYTES
    for size, what in (
        (12, "value_offsets = 0, 4, 9"),
        (4, "gap to a multiple of 8"),
        (9, "value_data"),
        (7, "final padding"),
    ):
        for start in range(0, size, 8):
            lines.append(_line(encoded, position + start, min(8, size - start), what if start == 0 else ""))
        position += size
    assert position == len(encoded) == header.batch_bytes, (position, len(encoded))
    return "\n".join([*(line.rstrip() for line in lines), "```"])


def _line(encoded: bytes, position: int, size: int, what: str) -> str:
    return f"{position:4}   {encoded[position : position + size].hex(' '):<25} {what}"
