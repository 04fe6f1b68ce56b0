"""A run from its command line to its files: what is chosen, printed, written, and compared with the baseline."""

import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console

from bench import __main__ as program
from bench.case import BROKER_CPU, CLIENT_CPU, MB, RATE, Case, Catalogue, Figure, Sample, Target
from bench.load import Load
from bench.report import Report, bound_text
from bench.run import choose, list_cases, measure, run
from bench.stage import Meter, Stage


def gives(rate: float, mb: float, *marks: tuple[float, float], **more: float) -> Callable[[Stage], Sample]:
    return lambda _: Sample({RATE: rate, MB: mb, **more}, marks)


def breaks(_: Stage) -> Sample:
    raise ConnectionError("no server")


CATALOGUE = Catalogue(
    [
        Case("limit/in", gives(10.0, 200.0), daily=True),
        Case("produce/a", gives(8.0, 160.0, (1.0, 0.5), (2.0, 1.0), bytes_on_disk=5.5), limit="limit/in", daily=True),
        Case("consume/b", gives(9.0, 90.0, (1.0, 0.1), (2.0, 0.3))),
        Case("consume/broken", breaks),
        Case("out/gone", breaks, missing=lambda: "java is not installed"),
    ],
    [
        Target("of the limit", Figure("produce/a", MB), 0.75, Figure("limit/in", MB)),
        Target("on disk", Figure("produce/a", "bytes_on_disk"), 5.0, at_most=True),
        Target("against the other", Figure("produce/a"), None, Figure("consume/b")),
        Target("against a peer", Figure("consume/b"), 1.0, Figure("out/gone")),
        Target("of what breaks", Figure("consume/broken"), 50_000),
    ],
)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return run(CATALOGUE, CATALOGUE.cases, rounds=2, records=20_000, output=tmp_path)


def test_a_round_warms_what_is_measured(tmp_path: Path) -> None:
    """It precedes the rounds and does not count; a quick run is one small round without it."""
    loads: list[int] = []

    def notes(stage: Stage) -> Sample:
        loads.append(stage.records)
        return Sample({RATE: 1.0, MB: 1.0})

    catalogue = Catalogue([Case("limit/x", notes)])
    report = run(catalogue, catalogue.cases, rounds=2, records=20_000, output=tmp_path)
    assert (len(report.results["limit/x"]), loads) == (2, [20_000] * 3)
    report = run(catalogue, catalogue.cases, rounds=2, records=20_000, output=tmp_path, quick=True)
    assert (len(report.results["limit/x"]), loads[3:]) == (1, [200_000])
    assert (report.settings["rounds"], report.settings["records"]) == (1, 200_000)


def shown(report: Report) -> str:
    output = io.StringIO()
    report.show(Console(width=200, file=output))
    return output.getvalue()


def test_a_run_leaves_json_and_the_two_figures(report: Report, tmp_path: Path) -> None:
    """Machine, settings, every repetition with its marks, targets, skipped cases with reasons; two drawings."""
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["settings"]["rounds"] == 2
    assert document["machine"]["cores"] >= 1
    assert document["cases"]["produce/a"] == {
        "of_limit": 0.8,
        "repetitions": [{RATE: 8.0, MB: 160.0, "bytes_on_disk": 5.5}] * 2,
        "marks": [[[1.0, 0.5], [2.0, 1.0]]] * 2,
    }
    assert document["skipped"] == {
        "consume/broken": "failed: ConnectionError: no server",
        "out/gone": "java is not installed",
    }
    found = {target["text"]: (target["measured"], target["met"], target["missing"]) for target in document["targets"]}
    assert found == {
        "of the limit": (0.8, True, ""),
        "on disk": (5.5, False, ""),
        "against the other": (pytest.approx(8 / 9), None, ""),
        "against a peer": (None, None, "out/gone: java is not installed"),
        "of what breaks": (None, None, "consume/broken: failed: ConnectionError: no server"),
    }
    names = {}
    for figure in ("producer", "consumer"):
        drawing = ET.parse(tmp_path / f"{figure}.svg").getroot()
        names[figure] = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "a" in names["producer"]
    assert "b" in names["consumer"]


def test_where_there_is_no_terminal_each_case_is_a_line() -> None:
    """When it is measured, and not at the end: a run takes an hour and a half."""
    printed = io.StringIO()
    seen: list[str] = []

    def looks(_: Stage) -> Sample:
        seen.append(printed.getvalue().rpartition(",")[0])
        return Sample({RATE: 1.0, MB: 1.0})

    with Stage(20_000) as stage:
        measure(stage, [Case("produce/a", looks), Case("produce/b", looks)], 1, Console(file=printed), warm_rounds=1)
    first, second, third = "warm-up: produce/a", "warm-up: produce/b", "round 1 of 1: produce/a"
    assert [text.splitlines()[-1:] for text in seen] == [[], [first], [second], [third]]
    assert printed.getvalue().count("\n") == 4


def test_targets_are_printed_with_what_was_measured(report: Report) -> None:
    """Every figure of a case that was to be measured has a line: target, result or reason, verdict."""
    text = shown(report)
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│").split("│")]) == 4
    }
    assert rows["of the limit"] == ["at least 0.75", "0.8", "yes"]
    assert rows["on disk"] == ["at most 5", "5.5", "NO"]
    assert rows["against the other"] == ["stated", "0.8889", ""]
    assert rows["against a peer"] == ["at least 1", "out/gone: java is not installed", ""]
    assert rows["of what breaks"][0] == "at least 50,000"
    assert "skipped: out/gone: java is not installed" in text


def test_a_figure_of_unselected_cases_has_no_line() -> None:
    """A run of one case does not list all that it did not measure."""
    report = Report(CATALOGUE, {"limit/in": [Sample({MB: 1.0})]}, {})
    assert "targets" not in shown(report)
    assert report.missing(CATALOGUE.targets[0]) == "not run"


def test_bounds_in_words() -> None:
    """Least, most, or nothing."""
    assert [bound_text(0.75, at_most=False), bound_text(5.8, at_most=True)] == ["at least 0.75", "at most 5.8"]
    assert [bound_text(50_000, at_most=False), bound_text(None, at_most=False)] == ["at least 50,000", "stated"]


def test_what_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Without names what is measured every day; a pattern brings the limits it is compared with; a typo is told."""
    assert [case.name for case in choose(CATALOGUE, None, everything=False)] == ["limit/in", "produce/a"]
    assert [case.name for case in choose(CATALOGUE, ["prod*"], everything=False)] == ["limit/in", "produce/a"]
    assert choose(CATALOGUE, None, everything=True) == CATALOGUE.cases
    with pytest.raises(typer.BadParameter, match=r"no case is called 'produc'; --list prints them"):
        choose(CATALOGUE, ["produc"], everything=False)
    list_cases(CATALOGUE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "* produce/a"
    assert lines[4] == "  out/gone  (skipped: java is not installed)"


def test_the_program_keeps_a_baseline_and_checks_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--save-baseline writes shares of the limit; --check ends with 1 where a case is slower, and only there."""
    baseline = tmp_path / "baseline.json"
    monkeypatch.setattr(program, "BASELINE", baseline)
    monkeypatch.setattr(program, "CATALOGUE", CATALOGUE)
    program.main(rounds=1, records=20_000, output=tmp_path, save_baseline=True)
    assert json.loads(baseline.read_text())["of_limit"] == {"produce/a": 0.8}
    program.main(rounds=1, records=20_000, output=tmp_path, check=True)
    slower = Catalogue([CATALOGUE.cases[0], Case("produce/a", gives(8.0, 120.0), limit="limit/in", daily=True)])
    monkeypatch.setattr(program, "CATALOGUE", slower)
    program.main(rounds=1, records=20_000, output=tmp_path)
    with pytest.raises(typer.Exit) as ended:
        program.main(rounds=1, records=20_000, output=tmp_path, check=True)
    assert ended.value.exit_code == 1


def test_a_load_is_as_many_bytes_whatever_the_size() -> None:
    """Fewer large records, at least 20; at most twice as many small ones."""
    stage = Stage(100_000)
    loads = [stage.load(size) for size in (20, 200, 1_000, 1_000_000)]
    assert [load.records for load in loads] == [200_000, 100_000, 20_000, 20]
    assert stage.load(200, 4.0) == Load(400_000, 200)


def test_a_meter_counts_per_gigabyte_of_values() -> None:
    """Rates and processor time of a load; MB with what the batches add."""
    meter = Meter([])
    found = meter.figures(Load(5_000_000, 200), 2.0, batches=1_000, client_seconds=3.0)
    assert (found[RATE], found[BROKER_CPU], found[CLIENT_CPU]) == (2_500_000.0, 0.0, 3.0)
    assert found[MB] == pytest.approx((1e9 + 5_000_000 * 4 + 1_000 * 80) / 2 / 1e6)
