"""The demo's checks can fail: loss, duplicates, wrong order and changed bytes are each found."""

import io

import pyarrow as pa
import pytest
from rich.console import Console

from examples.demo.failover import FailoverReport, LeaderChange
from examples.demo.ledger import Ledger
from examples.demo.report import DemoTopicReport, as_json, compare, show

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
    read: list[list[bytes]],
    end_offsets: tuple[int, int] = (3, 2),
    first_offsets: tuple[int, int] = (0, 0),
    replicas: dict[int, list[int]] | None = None,
) -> DemoTopicReport:
    sender, reader = ledgers(read, first_offsets)
    ends = dict(enumerate(end_offsets))
    return compare(
        TOPIC,
        sender,
        [reader],
        acknowledged_ns=sender.started_ns + 10**9,
        end_offsets=ends,
        stored_bytes=107,
        replica_end_offsets=replicas,
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


def test_replicas_that_differ_are_found() -> None:
    """A replica that lacks a record, or has one too many, is a problem even where readers saw nothing of it."""
    assert report(SENT, replicas={0: [3, 3, 3], 1: [2, 2, 2]}).problems == ()
    assert report(SENT, replicas={0: [3, 3, 3], 1: [2, 2, 2]}).replicas == 3
    assert report(SENT, replicas={0: [3, 3, 3], 1: [2, 1, 2]}).problems == (
        "partition 1: its replicas have 2, 1, 2 records",
    )
    assert report(SENT, replicas={0: [3, 4, 3], 1: [2, 2, 2]}).problems


def failover(*spans: float | None) -> FailoverReport:
    changes = [LeaderChange(TOPIC, number, 2, 1, span) for number, span in enumerate(spans)]
    return FailoverReport(1, 3.0, tuple(changes), seconds_until_elected=3.1, seconds_until_in_sync=2.0, copied_bytes=9)


def test_the_longest_time_without_a_leader_counts() -> None:
    """Of the partitions that were written to; a topic whose partitions were not led by the broker has none."""
    assert failover(3.2, None, 3.4).longest_seconds_without_leader() == 3.4
    assert failover(3.2).longest_seconds_without_leader("another") is None
    assert failover(None).longest_seconds_without_leader(TOPIC) is None


@pytest.mark.parametrize(("spans", "cell"), [((3.2, 3.4), "3.40 s"), ((None,), "none"), (None, None)])
def test_the_table_has_a_line_for_the_failover(spans: tuple[float | None, ...] | None, cell: str | None) -> None:
    """The table has the cost of the kill if a broker was killed; without a kill there is no such line."""
    text = io.StringIO()
    show([report(SENT)], failover(*spans) if spans else None, Console(file=text, width=100))
    line = next((line for line in text.getvalue().splitlines() if "longest without a leader" in line), None)
    assert (line is None) == (cell is None)
    assert cell is None or cell in str(line)
    assert "All agree." in text.getvalue()


def test_programs_get_the_failover_too() -> None:
    """`--json` has every field of it, or null where nothing was killed."""
    found = as_json([report(SENT)], failover(3.2), cluster="c", source="s")
    assert found["ok"]
    assert found["failover"]["partitions"] == (
        {"topic": TOPIC, "partition": 0, "leader_id": 2, "leader_epoch": 1, "seconds_without_leader": 3.2},
    )
    assert found["failover"]["copied_bytes"] == 9
    assert as_json([report(SENT)], None, cluster="c", source="s")["failover"] is None
