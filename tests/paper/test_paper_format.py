"""The paper's sentences about messages as bytes: sections 3, 3.1, 3.3 and 5, held by the record batch alone.

Kreps, Narkhede, Rao: Kafka: a Distributed Messaging System for Log Processing, NetDB 2011.
"""

import ast
import importlib.util
from pathlib import Path

import pytest
from headrace.wire.batch import check_batch, iter_batches, stamp
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.errors import CorruptBatchError, Outcome

LIMITS = {"max_batch_bytes": 1 << 20, "max_records": 10_000, "max_payload_bytes": 1 << 20}
MESSAGE = b"m" * 200


def overhead_bytes(records: int) -> float:
    """Bytes of overhead a message of 200 bytes in a batch of `records`."""
    return (len(encode_batch([MESSAGE] * records, base_timestamp_ms=0)) - 200 * records) / records


def test_section_3_a_message_is_just_payload_bytes() -> None:
    """Section 3: a message contains just a payload of bytes; the user chooses how to serialise it."""
    payloads = [b"", bytes(range(256)), b'{"json": 1}', b"\x00" * 7, "ünï".encode()]
    batch = encode_batch(payloads, base_timestamp_ms=0)
    assert decode_batch(batch, max_payload_bytes=1 << 20).values() == payloads


TABLES = ("table.py", "table_writes.py")
"""The answers of tables have values."""


def test_section_3_the_broker_never_decodes_messages() -> None:
    """Section 3: payloads are opaque. What decodes is off the path of batches.

    The simple `records` form, rows of tables, look-ups by a record's own timestamp, the tool that prints a segment, and
    the leader's check that readers can decode what is stored (`validate=header` leaves it out), which keeps nothing.
    """
    users = []
    for path in sorted(_package("headrace_broker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in ("headrace.wire.columns", "headrace.wire.encoding"):
                users.append(path.name)
    assert set(users) <= {"records.py", "timestamps.py", "dump.py", "batch_checks.py", *TABLES}


def test_section_3_1_a_set_of_messages_in_one_batch() -> None:
    """Sections 3 and 3.1: the producer submits a set of messages in a single send request; they become one batch."""
    batch = encode_batch([b"%d" % number for number in range(1_000)], base_timestamp_ms=0)
    header = check_batch(batch, **LIMITS)
    assert header.record_count == 1_000
    assert [len(view) for _, view in iter_batches(batch)] == [len(batch)]


def test_section_3_1_no_message_ids_and_consecutive_offsets() -> None:
    """Section 3.1: no explicit message id, a message is addressed by its logical offset.

    A deliberate departure: the paper's next id is the id plus the length of the message; ours are consecutive.
    """
    sent = [encode_batch([b"x" * size] * count, base_timestamp_ms=0) for size, count in ((10, 3), (999, 1), (1, 7))]
    log, end_offset = b"", 0
    for batch in sent:
        header = check_batch(batch, **LIMITS)
        log += stamp(header, base_offset=end_offset, append_timestamp_ms=1, leader_epoch=0, previous_crc=0) + batch[32:]
        end_offset += header.record_count
    assert [(header.base_offset, header.end_offset) for header, _ in iter_batches(log)] == [(0, 3), (3, 4), (4, 11)]
    # An id for each message would cost at least a byte for each: without any, a record costs the 4 bytes of its length.
    assert overhead_bytes(10_000) == pytest.approx(4.01, abs=0.005)


def test_section_3_3_a_crc_for_what_is_stored() -> None:
    """Section 3.3: a CRC is stored with the messages in the log: any flipped byte is refused."""
    batch = encode_batch([b"click", b"view", b"search"], keys=[b"a", None, b"b"], base_timestamp_ms=1_300_000_000_000)
    for position in range(len(batch)):
        corrupt = bytearray(batch)
        corrupt[position] ^= 0xFF
        with pytest.raises(CorruptBatchError):
            check_batch(corrupt, **LIMITS)


def test_section_3_3_network_errors_are_caught_too() -> None:
    """Section 3.3: the CRC also lets one check for network errors after produce or consume: a cut batch is refused."""
    batch = encode_batch([MESSAGE] * 3, base_timestamp_ms=0)
    for length in (0, 1, 79, 80, len(batch) - 1):
        with pytest.raises(CorruptBatchError) as refused:
            check_batch(batch[:length], **LIMITS)
        assert refused.value.outcome is Outcome.NOT_APPLIED


def test_section_5_overhead_of_a_message() -> None:
    """Section 5: 9 bytes of overhead a message against 144 in ActiveMQ; ours is 5.8 at the paper's batch of 50."""
    assert overhead_bytes(50) == pytest.approx(5.76)
    assert overhead_bytes(50) < 9 < 144


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
