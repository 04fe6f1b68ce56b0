"""The page on performance is filled from runs, by one command."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import publish
from bench.case import MB, RATE

PAGE = """# Performance

<!-- begin targets -->
old
<!-- end targets -->

text \\1 stays

<!-- begin headrace -->
old
<!-- end headrace -->
<!-- begin peers -->
old
<!-- end peers -->
"""


def target(text: str, measured: float | None, met: bool | None = True, missing: str = "") -> dict[str, Any]:
    return {"text": text, "bound": 0.75, "at_most": False, "measured": measured, "met": met, "missing": missing}


def written(directory: Path, cases: dict[str, float], targets: list[dict[str, Any]], *drawings: str) -> Path:
    """A run's directory."""
    directory.mkdir()
    document = {
        "when": "2030-01-02T03:04:05+00:00",
        "machine": {
            "cores": 2,
            "memory_bytes": 8 << 30,
            "python": "3.11",
            "grpcio": "1",
            "protobuf": "2",
            "load_average": [0.25, 0, 0],
        },
        "settings": {"rounds": 3, "records": 1_000},
        "cases": {
            name: {
                "of_limit": 0.5,
                "repetitions": [{RATE: rate * each, MB: rate, "p99_ms": 1.5} for each in (1, 2, 3)],
                "marks": [],
            }
            for name, rate in cases.items()
        },
        "targets": targets,
        "skipped": {"in/gone": "not installed: \\1"},
    }
    (directory / "report.json").write_text(json.dumps(document))
    for name in drawings:
        (directory / name).write_text(directory.name)
    return directory


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "performance.md"
    path.write_text(PAGE)
    monkeypatch.setattr(publish, "PAGE", path)
    monkeypatch.setattr(publish, "FIGURES", tmp_path / "figures")
    return path


def test_runs_of_both_kinds_fill_the_page(page: Path, tmp_path: Path) -> None:
    """Each table in its section, a target with the first run that has it, the figures of the first run of a kind."""
    daily = written(
        tmp_path / "daily",
        {"produce/a": 1_000.0},
        [target("a", 0.8), target("log", None, None, "not run")],
        "producer.svg",
    )
    long = written(
        tmp_path / "long", {"log/20 GB": 5.0}, [target("a", None), target("log", 0.5, False)], "producer.svg"
    )
    peers = written(tmp_path / "peers", {"in/Kafka": 70.0, "produce/a": 9.0}, [target("ratio", 0.9)])
    publish.main([daily, long, peers])
    text = page.read_text()
    targets, headrace, others = (text.split(f"<!-- begin {name} -->")[1] for name in ("targets", "headrace", "peers"))
    assert "| a | at least 0.75 | 0.8 | yes |" in targets
    assert "| log | at least 0.75 | 0.5 | **no** |" in targets
    assert "| ratio | at least 0.75 | 0.9 | yes |" in targets
    assert "| produce/a | 2,000 | 1,000 |" in headrace
    assert "1,000 to 3,000 | 50% |" in headrace
    assert "| log/20 GB | 10 |" in headrace
    assert "| log/20 GB | p99_ms 1.5 |" in headrace
    assert "medians of 3 rounds of 1,000 records" in headrace
    assert "| in/Kafka | 140 |" in others
    assert "Not measured: in/gone: not installed: \\1" in others
    assert "figures/headrace-producer.svg" in headrace
    assert "figures/peers" not in others
    assert (tmp_path / "figures" / "headrace-producer.svg").read_text() == "daily"
    assert "old" not in text
    assert "text \\1 stays" in text


def test_runs_that_are_added_take_no_figure_away(page: Path, tmp_path: Path) -> None:
    """Their tables follow those of the page, and they measure targets that had no figure."""
    first = [target("a", 0.8), target("log", None, None, "not run"), target("gone", 1.0)]
    publish.main([written(tmp_path / "first", {"produce/a": 1_000.0}, first, "producer.svg")])
    second = [target("a", 0.1, False), target("log", 0.5, False), target("new", 2.0)]
    publish.main([written(tmp_path / "second", {"log/20 GB": 5.0}, second, "producer.svg")], add=True)
    text = page.read_text()
    targets, headrace = (text.split(f"<!-- begin {name} -->")[1] for name in ("targets", "headrace"))
    assert [line.split("|")[1:4:2] for line in targets.splitlines() if "| at least" in line] == [
        [" a ", " 0.8 "],
        [" log ", " 0.5 "],
        [" gone ", " 1 "],
        [" new ", " 2 "],
    ]
    assert "| log | at least 0.75 | 0.5 | **no** |" in targets
    assert headrace.index("| produce/a | 2,000 |") < headrace.index("| log/20 GB | 10 |")
    assert (tmp_path / "figures" / "headrace-producer.svg").read_text() == "first"


def test_a_section_without_a_run_stays(page: Path, tmp_path: Path) -> None:
    """Publishing one kind leaves the tables of the other one; again gives the same page."""
    run = written(tmp_path / "daily", {"produce/a": 1.0}, [target("log", None, None, "not run")])
    publish.main([run])
    once = page.read_text()
    assert "old" in once.split("<!-- begin peers -->")[1]
    assert "| log | at least 0.75 | not run |  |" in once
    publish.main([run])
    assert page.read_text() == once


def test_a_page_without_marks_is_an_error(page: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    page.write_text("# Performance\n")
    with pytest.raises(ValueError, match="has no marks for targets"):
        publish.main([written(tmp_path / "daily", {"produce/a": 1.0}, [])])
    assert page.read_text() == "# Performance\n"


def test_the_real_page_has_the_marks() -> None:
    """Each of the three sections, once."""
    text = publish.PAGE.read_text()
    for name in ("targets", "headrace", "peers"):
        assert text.count(f"<!-- begin {name} -->\n") == text.count(f"<!-- end {name} -->\n") == 1
