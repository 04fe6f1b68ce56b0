"""The demo's checks can fail: loss, duplicates, wrong order and changed bytes are each found."""

import pyarrow as pa
import pytest
from headrace_devcluster.demo.ledger import Ledger
from headrace_devcluster.demo.report import TopicReport, compare

TOPIC = "t"
SENT = [[b"a", b"bb", b""], [b"ccc", b"d"]]


def ledgers(read: list[list[bytes]], first_offsets: tuple[int, int] = (0, 0)) -> tuple[Ledger, Ledger]:
    sender, reader = Ledger({TOPIC: 2}), Ledger({TOPIC: 2})
    for number, values in enumerate(SENT):
        sender.partitions[TOPIC, number].add_values(values, at_ns=sender.started_ns + 1_000_000)
    for number, values in enumerate(read):
        array = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
        reader.partitions[TOPIC, number].add_arrow(array, first_offsets[number], at_ns=sender.started_ns + 6_000_000)
    return sender, reader


def report(
    read: list[list[bytes]], end_offsets: tuple[int, int] = (3, 2), first_offsets: tuple[int, int] = (0, 0)
) -> TopicReport:
    sender, reader = ledgers(read, first_offsets)
    ends = dict(enumerate(end_offsets))
    return compare(
        TOPIC, sender, [reader], acknowledged_ns=sender.started_ns + 10**9, end_offsets=ends, stored_bytes=107
    )


def test_what_agrees_is_reported_without_problems() -> None:
    """Figures are those of the ledgers: 5 records, 7 bytes, 20 bytes of overhead each, 5 ms from send to receive."""
    found = report(SENT)
    assert found.problems == ()
    assert (found.records, found.value_bytes, found.lost, found.duplicated) == (5, 7, 0, 0)
    assert (found.overhead_bytes_per_record, found.records_per_second_in) == (20.0, 5)
    assert (found.latency_p50_ms, found.latency_p99_ms) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("read", "end_offsets", "lost", "duplicated"),
    [
        pytest.param([[b"a", b"bb"], SENT[1]], (3, 2), 1, 0, id="not read"),
        pytest.param([[b"a", b"bb"], SENT[1]], (2, 2), 1, 0, id="not stored"),
        pytest.param([[b"a", b"bb", b"", b""], SENT[1]], (4, 2), 0, 1, id="twice"),
        pytest.param([[b"bb", b"a", b""], SENT[1]], (3, 2), 0, 0, id="order"),
        pytest.param([[b"a", b"bB", b""], SENT[1]], (3, 2), 0, 0, id="bytes"),
        pytest.param([[b"ab", b"b", b""], SENT[1]], (3, 2), 0, 0, id="boundaries"),
    ],
)
def test_what_differs_is_found(
    read: list[list[bytes]], end_offsets: tuple[int, int], lost: int, duplicated: int
) -> None:
    """Each kind of fault leaves a problem, and the counts of lost and duplicated records are right."""
    found = report(read, end_offsets)
    assert found.problems
    assert (found.lost, found.duplicated) == (lost, duplicated)


def test_a_gap_in_the_offsets_is_found() -> None:
    """Records at other offsets than their count are out of order, even where their bytes are right."""
    assert any("out of order" in problem for problem in report(SENT, first_offsets=(1, 0)).problems)
