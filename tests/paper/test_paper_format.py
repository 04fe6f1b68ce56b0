"""The paper's sentences about messages as bytes: sections 3, 3.1, 3.3 and 5, held by the record batch alone.

Kreps, Narkhede, Rao: Kafka: a Distributed Messaging System for Log Processing, NetDB 2011.
"""

import ast
import importlib.util
from pathlib import Path

import pytest
from headrace.wire.batch import check_batch, iter_batches, stamp
from headrace.wire.columns import decode_batch, encode_batch
from headrace.wire.encoding import RowBlocks, column_parts
from headrace.wire.errors import CorruptBatchError, Outcome
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.arrow_columns import arrays_of_rows
from headrace.wire.typed.topic_columns import parse_columns

LIMITS = {"max_batch_bytes": 1 << 20, "max_records": 10_000, "max_payload_bytes": 1 << 20}
MESSAGE = b"m" * 200


KEY = b"user-001"


def overhead_bytes(records: int, encoding: str = "values") -> float:
    """Bytes of overhead a message of 200 bytes in a batch of `records`; bytes of keys and headers do not count."""
    values, times = [MESSAGE] * records, list(range(records))
    match encoding:
        case "values":
            batch, payload = encode_batch(values, base_timestamp_ms=0), 200
        case "own timestamps":
            batch, payload = encode_batch(values, base_timestamp_ms=0, timestamps_ms=times), 200
        case "keys":
            batch, payload = encode_batch(values, [KEY] * records, base_timestamp_ms=0), 200 + len(KEY)
        case "keys and own timestamps":
            batch = encode_batch(values, [KEY] * records, base_timestamp_ms=0, timestamps_ms=times)
            payload = 200 + len(KEY)
        case "one header":
            headers = [[("host", b"web-1")]] * records
            batch, payload = encode_batch(values, base_timestamp_ms=0, headers=headers), 200 + len("hostweb-1")
        case "a typed column":
            columns = parse_columns("1 line string required")
            (array,) = arrays_of_rows([{"line": MESSAGE.decode()}] * records, columns)
            block = block_of_array(array, columns.current[0].type)
            rows = RowBlocks(columns.batch_text, [block], records)
            batch, payload = b"".join(column_parts(rows, None, base_timestamp_ms=0)), 200
        case _:
            raise AssertionError(encoding)
    return (len(batch) - payload * records) / records


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
    """Section 3.1, a departure: no explicit message id, a message is addressed by its logical offset.

    The paper's next id is the id plus the length of the message; ours are consecutive.
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


def test_section_3_a_record_has_more_than_a_payload() -> None:
    """Section 3, a departure: besides its payload a record has a key, a timestamp and headers, each optional."""
    fields = {"timestamps_ms": [5, 7], "headers": [[("trace", b"7f")], None]}
    batch = encode_batch([b"x", None], [b"k", None], base_timestamp_ms=5, **fields)
    columns = decode_batch(batch, max_payload_bytes=1 << 20)
    assert columns.values() == [b"x", None], "a null is not an empty payload"
    assert columns.key_column is not None
    assert columns.header_columns is not None
    assert columns.timestamps_ms is not None
    plain = decode_batch(encode_batch([b"x"], base_timestamp_ms=5), max_payload_bytes=1 << 20)
    assert (plain.key_column, plain.header_columns, plain.timestamps_ms) == (None, None, None)


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


def test_section_3_3_a_crc_for_a_batch_and_not_for_each_message() -> None:
    """Section 3.3, a departure: one corrupt message makes its whole batch corrupt; a further message costs no CRC."""
    good = encode_batch([b"first", b"second", b"third"], base_timestamp_ms=0)
    corrupt = good.replace(b"second", b"Second")
    assert corrupt != good
    with pytest.raises(CorruptBatchError):
        check_batch(corrupt, **LIMITS)
    decoded = decode_batch(corrupt, max_payload_bytes=1 << 20)
    assert decoded.values() == [b"first", b"Second", b"third"], "without the batch's CRC nothing tells which one it is"
    one, many = (len(encode_batch([MESSAGE] * count, base_timestamp_ms=0)) for count in (2, 10_002))
    assert many - one == 10_000 * (200 + 4), "the 4 bytes are those of its length"


@pytest.mark.parametrize(
    ("encoding", "alone", "of_50"),
    [
        ("values", 88, 5.76),
        ("own timestamps", 96, 13.76),
        ("keys", 96, 9.92),
        ("keys and own timestamps", 104, 17.92),
        ("one header", 119, 18.36),
        ("a typed column", 200, 8),
    ],
)
def test_section_5_overhead_of_a_message(encoding: str, alone: float, of_50: float) -> None:
    """Section 5, a departure: the paper's 9 bytes a message are there at any batch size (144 in ActiveMQ).

    Ours are a header a batch: many in a batch of one message, few in one of 50, which are the two of the experiment.
    The page has these figures.
    """
    assert overhead_bytes(1, encoding) == pytest.approx(alone)
    assert overhead_bytes(50, encoding) == pytest.approx(of_50)
    assert of_50 < alone
    page = (Path(__file__).resolve().parents[2] / "docs" / "paper.md").read_text("utf-8")
    assert f"| {encoding} | {alone:g} | {of_50:g} |" in page


def test_section_5_overhead_of_a_message_in_larger_batches() -> None:
    """Section 5, a departure: in batches of 17 plain messages or more, one has less than the paper's 9 bytes."""
    assert [overhead_bytes(count) < 9 for count in range(1, 10_000, 16)] == [False] + [True] * 624
    assert all((overhead_bytes(count) < 9) == (count >= 17) for count in range(1, 40))


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
