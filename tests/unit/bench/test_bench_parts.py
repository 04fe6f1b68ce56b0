"""What the benches compute with: ratios round by round, the choice of cases, figures, counting answers on a socket."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from bench import figures, identity_cost, record_cost
from bench.case import MB, RATE, Case, Catalogue, Figure, Sample, Target
from bench.catalogue import CATALOGUE
from bench.load import BATCH_BYTES, Load, one_batch
from bench.open_loop import after_warm_up, percentiles, record_count
from bench.peers.catalogue import CATALOGUE as PEERS
from bench.peers.clients.wire import Occurrences
from bench.report import Report
from bench.run import measure
from bench.stage import Stage


def samples(*rates: float) -> list[Sample]:
    return [Sample({RATE: rate, MB: rate / 10}) for rate in rates]


def test_ratios_are_taken_round_by_round() -> None:
    """The median of the ratios, not the ratio of the medians: a slow minute slows both sides of its round."""
    results = {"a": samples(10, 200, 30), "b": samples(20, 100, 10)}
    assert Target("", Figure("a"), 2.0, Figure("b")).measured(results) == 2.0
    assert Target("", Figure("a"), 2.0, Figure("b")).met(results) is True
    assert Target("", Figure("a"), 1.5, Figure("b"), at_most=True).met(results) is False
    assert Target("", Figure("a"), 15.0, Figure("missing")).met(results) is None
    assert Target("", Figure("a"), 15.0, Figure("zero")).met(results | {"zero": [Sample({RATE: 0.0})] * 3}) is None


@pytest.mark.parametrize("catalogue", [CATALOGUE, PEERS])
def test_everything_that_is_named_is_a_case(catalogue: Catalogue) -> None:
    """Names are different; limits and targets name cases; what is measured every day has its limits there too."""
    names = [case.name for case in catalogue.cases]
    assert len(names) == len(set(names))
    named = [case.limit for case in catalogue.cases if case.limit]
    named += [figure.case for each in catalogue.targets for figure in (each.figure, each.against) if figure]
    assert set(named) <= set(names)
    chosen = {case.name for case in catalogue.chosen(["produce/send", "consume/loop"])}
    assert chosen == {"produce/send", "limit/native", "consume/loop", "limit/sendfile"}
    with pytest.raises(KeyError):
        catalogue.chosen(["produce/nothing"])


def test_a_case_that_fails_is_skipped_and_the_others_run() -> None:
    """Warm rounds do not count, a case may have fewer rounds than others, one that is missing is never run."""
    calls: list[str] = []

    def fails(stage: Stage) -> Sample:
        raise ConnectionError("no server")

    def works(stage: Stage) -> Sample:
        calls.append("works")
        return Sample({RATE: float(len(calls))})

    cases = [
        Case("fails", fails),
        Case("works", works),
        Case("once", works, rounds=1),
        Case("gone", fails, missing=lambda: "not installed"),
    ]
    with Stage(20_000) as stage:
        results, skipped = measure(stage, cases, 3, Console(quiet=True), warm_rounds=1)
    assert {name: len(found) for name, found in results.items()} == {"works": 3, "once": 1}
    assert skipped == {"fails": "failed: ConnectionError: no server", "gone": "not installed"}


def test_a_baseline_is_compared_by_shares_of_the_limit(tmp_path: Path) -> None:
    """Twice as slow a machine is no slower case; a smaller share of the limit is."""
    catalogue = Catalogue([Case("limit", lambda _: Sample({})), Case("a", lambda _: Sample({}), limit="limit")])
    before = Report(catalogue, {"limit": samples(100), "a": samples(80)}, {})
    (tmp_path / "baseline.json").write_text(json.dumps(before.baseline()))
    quiet = Console(quiet=True)
    slow_machine = Report(catalogue, {"limit": samples(50), "a": samples(40)}, {})
    slow_case = Report(catalogue, {"limit": samples(100), "a": samples(60)}, {})
    assert slow_machine.compare(tmp_path / "baseline.json", quiet) == []
    assert slow_case.compare(tmp_path / "baseline.json", quiet) == ["a"]
    assert json.loads(json.dumps(slow_case.document()))["cases"]["a"]["of_limit"] == 0.6


def test_a_figure_is_a_drawing_with_a_line_a_case() -> None:
    """Rates are those between two marks; names are escaped; the drawing is XML."""
    sample = Sample({}, [(100.0, 1.0), (200.0, 1.5)])
    assert figures.rates(sample, 200) == [(100.0, 500_000.0), (200.0, 1_000_000.0)]
    drawing = ET.fromstring(figures.draw("a & b", {"<x>": figures.rates(sample, 200), "empty": []}))
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(str(line.get("points")).split()) for line in lines] == [2]
    assert "<x>" in [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("text", [b"$", b"MSG ", b"\r\n*2\r\n"])
def test_answers_are_counted_where_they_are_parted(text: bytes, size: int) -> None:
    """However the bytes come in pieces, each occurrence counts once."""
    stream = (text + b"x" * 5) * 20
    count = Occurrences(text)
    assert sum(count(stream[start : start + size]) for start in range(0, len(stream), size)) == 20


@pytest.mark.parametrize("value_bytes", [20, 200, 1_000, 100_000, 1_000_000])
def test_a_batch_holds_what_fits(value_bytes: int) -> None:
    """Values are different, of their size, and make a batch of at most 1 MiB."""
    load = Load(1, value_bytes)
    values = load.values()
    assert {len(value) for value in values} == {value_bytes}
    assert len(set(values)) == len(values)
    assert len(one_batch(load)) <= BATCH_BYTES


def test_the_first_second_is_not_counted() -> None:
    """Percentiles are of what came after it."""
    waits = [1_000.0] * 10_000 + [1.0] * 50_000
    assert len(waits) == record_count(10_000)
    assert percentiles(after_warm_up(waits)) == {"p50_ms": 1.0, "p99_ms": 1.0, "p999_ms": 1.0, "max_ms": 1.0}


def test_what_a_record_costs_is_measured_step_by_step() -> None:
    """Without a server; a step that did nothing would cost nothing."""
    found = record_cost.measure(value_bytes=200, repeat=1)
    assert all(cost > 0 for cost in found.values())
    assert {"send", "a method call with the parameters of send"} <= found.keys()


def test_what_an_identity_costs_is_measured_step_by_step() -> None:
    """Without a server, for as many users and grants as asked."""
    found = identity_cost.measure_decisions(users=20, grants=40, repeat=1) | identity_cost.measure_tokens(repeat=1)
    found |= identity_cost.measure_refusals(users=20, repeat=1)
    assert all(cost > 0 for step, cost in found.items() if step.endswith("us"))
