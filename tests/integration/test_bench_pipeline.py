"""`python -m bench.pipeline` against a real broker and a real load, for a second."""

import json

import pytest

from bench import pipeline


def test_every_record_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All that was sent is seen by the end, and what a record waits is at most the time of the whole."""
    found: list[pipeline.Followed] = []
    sent: list[float] = []
    follow, stop = pipeline.follow, pipeline.Sender.stop

    def stopped(sender: pipeline.Sender) -> None:
        stop(sender)
        sent[:] = sender.sent_at

    monkeypatch.setattr(pipeline, "follow", lambda *arguments: found.append(follow(*arguments)) or found[-1])
    monkeypatch.setattr(pipeline.Sender, "stop", stopped)
    pipeline.main(rate=1_000, seconds=1.0, every=0.2, formats=["parquet"], loaders=["headrace load"])
    _machine, case = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(found[0].waits) == len(sent) == case["records"] > 100
    assert 0 < min(found[0].waits) <= case["mean_s"] + 0.01
    assert case["commits"] > 1
    assert case["peak_mb"] > 10
