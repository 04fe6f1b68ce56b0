"""`headrace cluster balance`: the plan with the loads before and after it, a dry run, refusals and bad options."""

import json
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.wire.errors import InvalidRequestError
from headrace.wire.ids import TopicPartition


@pytest.fixture
def uneven(held: Any) -> Any:
    """Six partitions of three replicas, all led by broker 1; a fourth broker is empty."""
    held.start_brokers(1, 2, 3, 4)
    held.add("clicks", 6, (1, 2, 3), 1)
    held.loads = {TopicPartition("clicks", n): 1000.0 * (n + 1) for n in range(6)}
    return held


def test_balance_by_load_prints_the_loads_and_changes_nothing_in_a_dry_run(headrace: Any, uneven: Any) -> None:
    """JSON: the ratio falls to the limit, moves are as for `partition reassign`, whose --plan takes the document."""
    ended = headrace("cluster", "balance", "--by", "load", "--dry-run", "--output", "json")
    found = json.loads(ended.out)
    assert (ended.code, found["by"], found["dry_run"], uneven.changes) == (0, "load", True, [])
    assert (found["ratio_before"], found["ratio_after"] <= 1.2) == (4.0, True)
    assert [each["broker_id"] for each in found["brokers"]] == [1, 2, 3, 4]
    assert sum(each["before"] for each in found["brokers"]) == 21_000 == sum(each["after"] for each in found["brokers"])
    assert {"topic", "partition", "replicas", "adding", "copy_bytes"} <= found["partitions"][0].keys()
    table = headrace("cluster", "balance", "--by", "load", "--dry-run").out
    assert "LOAD BEFORE" in table
    assert "highest / mean: 4.00 now, 1." in table


def test_balance_by_load_moves_leaders_with_the_throttle(headrace: Any, uneven: Any) -> None:
    """The request has the targets of the plan; a looser limit needs fewer moves."""
    strict = json.loads(headrace("cluster", "balance", "--by", "load", "--dry-run", "--output", "json").out)
    headrace("cluster", "balance", "--by", "load", "--max-ratio", "1.5", "--throttle", "1MiB", "--yes")
    (change,) = uneven.changes
    targets, rate = change[1]
    assert (change[0], rate) == ("reassign", 1 << 20)
    assert 0 < len(targets) <= len(strict["partitions"])


def test_balance_by_replicas_evens_their_numbers(headrace: Any, uneven: Any) -> None:
    """18 replicas on four brokers: 4 or 5 each; the second plan is empty."""
    found = json.loads(headrace("cluster", "balance", "--output", "json").out)
    assert found["by"] == "replicas"
    assert sorted(each["after"] for each in found["brokers"]) == [4, 4, 5, 5]
    again = headrace("cluster", "balance", "--dry-run")
    assert "nothing to move" in again.out


def test_a_rejected_move_is_printed_with_its_reason(headrace: Any, uneven: Any) -> None:
    """The others start, and the exit code is 1."""
    uneven.refused[TopicPartition("clicks", 0)] = InvalidRequestError("it is too late")
    ended = headrace("cluster", "balance")
    assert (ended.code, "it is too late" in ended.err) == (ExitCode.FAILED, True)


@pytest.mark.parametrize(
    "options",
    [("--by", "load", "--max-ratio", "1"), ("--max-ratio", "1.5"), ("--by", "weight"), ("--throttle", "fast")],
)
def test_bad_options_are_usage_errors(headrace: Any, uneven: Any, options: tuple[str, ...]) -> None:
    """Before anything is planned."""
    ended = headrace("cluster", "balance", *options)
    assert (ended.code, uneven.changes) == (ExitCode.USAGE, [])
