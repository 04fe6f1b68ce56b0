"""Batches whose checksums are right and whose columns are not: what a stranger sends so that readers fail."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
from headrace.wire.batch import CRC_START, HEADER, HEADER_BYTES, MAGIC, PADDING_SHIFT, STAMP, BatchFlags, Codec
from headrace.wire.crc import crc32c

NOW_MS = 1_700_000_000_000
MIB = 1 << 20


def sealed(
    stored: bytes,
    *,
    records: int,
    codec: int = Codec.NONE,
    flags: int = 0,
    payload_bytes: int | None = None,
    times: tuple[int, int] = (NOW_MS, NOW_MS),
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Put a header with correct checksums before any payload."""
    padding = -len(stored) % 8
    flags |= padding << PADDING_SHIFT
    size = HEADER_BYTES + len(stored) + padding
    payload_bytes = len(stored) if payload_bytes is None else payload_bytes
    fields = (0, 0, size, -1, 0, 0, 0, MAGIC, codec, flags, records, payload_bytes, *times, *producer)
    batch = bytearray(HEADER.pack(*fields) + stored + bytes(padding))
    batch[STAMP.size : STAMP.size + 4] = crc32c(batch[: STAMP.size]).to_bytes(4, "little")
    batch[STAMP.size + 4 : CRC_START] = crc32c(batch[CRC_START:]).to_bytes(4, "little")
    return bytes(batch)


def int32s(*numbers: int) -> bytes:
    """Offsets as a column has them."""
    return np.array(numbers, "<i4").tobytes()


def aligned(*buffers: bytes) -> bytes:
    """Columns one behind the other, each at a multiple of 8."""
    payload = b""
    for buffer in buffers:
        payload += bytes(-len(payload) % 8) + buffer
    return payload


def with_headers(list_offsets: bytes, names: list[bytes], *, records: int, codec: int = Codec.NONE) -> bytes:
    """Make records without values and with these headers, whose values are empty."""
    ends = np.cumsum([0, *map(len, names)]).astype("<i4").tobytes()
    payload = aligned(int32s(*[0] * (records + 1)), b"", list_offsets, ends, b"".join(names), bytes(4 * len(names) + 4))
    stored = payload if codec == Codec.NONE else gzip.compress(payload)
    return sealed(stored, records=records, codec=codec, flags=BatchFlags.HEADERS, payload_bytes=len(payload))


def header_bomb(headers: int) -> bytes:
    """One record with this number of empty headers, compressed."""
    payload = aligned(int32s(0, 0), b"", int32s(0, headers), *[bytes(4 * headers + 4), b""] * 2)
    return sealed(
        zlib_member(payload), records=1, codec=Codec.GZIP, flags=BatchFlags.HEADERS, payload_bytes=len(payload)
    )


def zeros_bomb(
    payload_bytes: int, *, records: int = 1, noise: int = 0, times: tuple[int, int] = (NOW_MS, NOW_MS)
) -> bytes:
    """One batch of sound columns that inflates to `payload_bytes`; `noise` bytes of it do not shrink."""
    start = 4 * (records + 1) + 4 * (records + 1) % 8
    random = np.random.default_rng(7).bytes(noise)
    ends = np.zeros(records + 1, "<i4")
    ends[-1] = payload_bytes - start
    payload = bytearray(payload_bytes)
    payload[: ends.nbytes] = ends.tobytes()
    payload[start : start + noise] = random
    flags = BatchFlags.RECORD_TIMESTAMPS if times[0] != times[1] else 0
    return sealed(
        zlib_member(payload),
        records=records,
        codec=Codec.GZIP,
        flags=int(flags),
        payload_bytes=payload_bytes,
        times=times,
    )


def zlib_member(payload: bytes | bytearray) -> bytes:
    """Compress as one gzip member, the same bytes each time."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, 31)
    return deflater.compress(payload) + deflater.flush()


GOOD = aligned(int32s(0, 1, 2), b"ab")
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def poisons() -> dict[str, bytes]:
    """Every kind of batch that no reader can decode, by what is wrong with it."""
    return {
        "offsets descend": sealed(aligned(int32s(0, 2, 1), b"a"), records=2),
        "offsets start late": sealed(aligned(int32s(1, 1, 2), b"ab"), records=2),
        "offsets end past the payload": sealed(aligned(int32s(0, 1, 9), b"ab"), records=2),
        "offsets end before the payload": sealed(aligned(int32s(0, 1, 1), b"ab"), records=2),
        "offset is negative": sealed(aligned(int32s(0, -1, 2), b"ab"), records=2),
        "gap is not zero": sealed(int32s(0, 1, 2) + b"\1\0\0\0" + b"ab", records=2),
        "columns are noise": sealed(np.random.default_rng(1).bytes(64), records=2),
        "validity has bits past the end": sealed(
            aligned(int32s(0, 1, 2), b"ab", b"\xff"), records=2, flags=BatchFlags.NULL_VALUES
        ),
        "validity is flagged and missing": sealed(GOOD, records=2, flags=BatchFlags.NULL_VALUES),
        "keys are flagged and missing": sealed(GOOD, records=2, flags=BatchFlags.KEYS),
        "timestamps are flagged and missing": sealed(GOOD, records=2, flags=BatchFlags.RECORD_TIMESTAMPS),
        "timestamps are outside of the header's": sealed(
            aligned(GOOD, np.array([NOW_MS, -(2**62)], "<i8").tobytes()), records=2, flags=BatchFlags.RECORD_TIMESTAMPS
        ),
        "headers are flagged and missing": sealed(GOOD, records=2, flags=BatchFlags.HEADERS),
        "header name is not UTF-8": with_headers(int32s(0, 1), [b"\xff"], records=1),
        "header names cut a character": with_headers(int32s(0, 2), [b"\xc3", b"\xa9"], records=1),
        "record has 1,001 headers": with_headers(int32s(0, 1001), [b""] * 1001, records=1),
        "batch has a million headers and one": header_bomb(1_000_001),
        "zstd frame is none": sealed(b"no frame", records=2, codec=Codec.ZSTD, payload_bytes=24),
        "zstd frame is cut": sealed(ZSTD_MAGIC + b"\0\0", records=2, codec=Codec.ZSTD, payload_bytes=24),
        "lz4 frame is none": sealed(b"no frame", records=2, codec=Codec.LZ4, payload_bytes=24),
        "gzip inflates to more": sealed(zlib_member(GOOD + b"c"), records=2, codec=Codec.GZIP, payload_bytes=len(GOOD)),
        "gzip inflates to less": sealed(zlib_member(GOOD), records=2, codec=Codec.GZIP, payload_bytes=len(GOOD) + 1),
        "gzip inflates a thousandfold": zeros_bomb(4 * MIB),
        "compressed offsets descend": sealed(
            zlib_member(aligned(int32s(0, 2, 1), b"a")), records=2, codec=Codec.GZIP, payload_bytes=17
        ),
    }


def wild_times() -> dict[str, bytes]:
    """Sound columns whose timestamps no calendar has."""
    return {
        "before the year 1": sealed(GOOD, records=2, times=(-(2**62), -(2**62))),
        "before 1926": sealed(GOOD, records=2, times=(-2_000_000_000_000, -2_000_000_000_000)),
        "after the year 9999": sealed(GOOD, records=2, times=(NOW_MS, 2**62), flags=BatchFlags.RECORD_TIMESTAMPS),
    }
