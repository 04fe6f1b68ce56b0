"""`python -m bench.pipeline` against a real broker, with a load that takes no time in the place of the job."""

import re
import time

import headrace
import pytest

from bench import pipeline
from bench.stage import Target


def test_every_record_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All that was sent is loaded by the end, and what a record waits is from its sending to the run's end."""
    loaded: list[int] = []

    def load(target: Target, table: str) -> pipeline.Loaded:
        with headrace.Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            loaded.append(sum(found.offset for found in admin.list_offsets(target.topic).values()))
        return pipeline.Loaded(loaded[-1], time.monotonic() + 10, 7.0)

    monkeypatch.setattr(pipeline, "load", load)
    pipeline.main(rate=1_000, seconds=1.0)
    found = re.match(
        r"([\d,]+) records at 1,000/s by (\d+) runs.*\n.*\nlatency .* mean ([\d.]+) s", capsys.readouterr().out
    )
    assert found is not None
    assert int(found[1].replace(",", "")) == loaded[-1] > 100
    assert int(found[2]) == len(loaded)
    assert float(found[3]) >= 10
