"""The record batch's bytes are pinned: a file per magic version, which must decode and be reproduced bit by bit."""

from pathlib import Path

from headrace.wire.batch import check_batch, read_header, stamp
from headrace.wire.columns import decode_batch, encode_batch

GOLDEN = Path(__file__).parent / "batch-v1.bin"
VALUES = [b"first", None, b"", b"fourth \x00\xff"]
KEYS = [b"k1", b"", None, b"k4"]
HEADERS = [(), (("trace", b"\x01\x02"), ("größe", b"")), (), (("a", b"b"),)]
TIMESTAMPS_MS = [1_700_000_000_003, 1_700_000_000_001, 1_700_000_000_000, 1_700_000_000_002]


def encode() -> bytes:
    batch = encode_batch(
        VALUES,
        keys=KEYS,
        headers=HEADERS,
        timestamps_ms=TIMESTAMPS_MS,
        base_timestamp_ms=0,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
    )
    head = stamp(
        read_header(batch),
        base_offset=1_000_000,
        append_timestamp_ms=1_700_000_000_500,
        leader_epoch=5,
        previous_crc=0xDEADBEEF,
    )
    return head + batch[32:]


def test_golden_batch_is_reproduced() -> None:
    """Version 1 encodes to the same bytes for ever."""
    assert encode() == GOLDEN.read_bytes()


def test_golden_batch_decodes() -> None:
    """Version 1 decodes for ever."""
    batch = GOLDEN.read_bytes()
    header = check_batch(batch, max_batch_bytes=4096, max_records=10, max_payload_bytes=4096)
    assert header[:6] == (1_000_000, 1_700_000_000_500, len(batch), 5, 0xDEADBEEF, header.stamp_crc)
    assert header[7:9] == (1, 0)
    assert header.record_count == 4
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_003)
    assert header[14:] == (7, 2, 40)
    columns = decode_batch(batch, max_payload_bytes=4096)
    assert columns.values() == VALUES
    assert columns.keys() == KEYS
    assert columns.headers() == HEADERS
    assert columns.timestamps() == TIMESTAMPS_MS
    assert list(columns.offsets()) == [1_000_000, 1_000_001, 1_000_002, 1_000_003]
