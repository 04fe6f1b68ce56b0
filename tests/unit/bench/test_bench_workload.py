"""What is counted of the workloads: requests a second of a processor."""

import time

import pytest
from headrace.cli.bench.workloads import PaperWorkload, Requests

from bench import workload


class SlowWorkload:
    """Takes a hundredth of a second of a processor for each block, by the test's clock."""

    usual_value_bytes = 200.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        self._made = PaperWorkload(200, 1_000.0)
        monkeypatch.setattr(time, "process_time", lambda: self._now)

    def requests(self, count: int) -> Requests:
        self._now += 0.01
        return self._made.requests(count)


def test_requests_are_counted_by_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the wall clock says: 4,000 in 10 ms are 400,000 a second, of the model and of its columns."""
    slow = SlowWorkload(monkeypatch)
    assert workload.requests_per_second(slow, 40_000) == pytest.approx(400_000)
    assert workload.records_per_second(slow, None, 40_000) == pytest.approx(400_000)


def test_the_table_shows_target_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each workload."""
    workload.main(requests=8_000, rounds=1, keys=1_000)
    lines = {cells[0].strip(): cells for line in capsys.readouterr().out.splitlines() if (cells := line[1:].split("│"))}
    for name in ("paper", "etc"):
        made = int(lines[name][1].replace(",", ""))
        assert made > 0
        assert lines[name][3].strip() == ("yes" if made >= workload.TARGET else "NO")
