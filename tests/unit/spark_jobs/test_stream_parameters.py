"""An output of the windows jobs belongs to one query. No Spark runs."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from spark_jobs.command import JobError
from spark_jobs.streams import Stream
from typer.testing import CliRunner

from spark_jobs import streams, windows


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a windows command up to the start of its query; returns its result."""

    def start(command):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(windows, "check_topics", lambda *_: None)
            patched.setattr(windows, "spark_session", lambda *_: nullcontext())
            for name in ("read_stream", "counts_of", "sessions_of", "joined"):
                patched.setattr(windows, name, lambda *_: None)
            patched.setattr(windows, "run_stream", lambda _spark, stream, *_: ended(stream))
            return CliRunner().invoke(windows.app, f"{command} -q --output {tmp_path}".split())

    def ended(stream):
        spark = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(streams, "_counted", lambda *_: started(stream))
            streams.run_stream(spark, stream, None, windows.ProgressLine(quiet=True))

    def started(stream):
        stream.checkpoint.mkdir(exist_ok=True)
        raise JobError("the query starts")

    return start


def problem(result):
    return str(result.exception)


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        ("counts --topic a", "counts --topic b", r"topics is \['a'\], not \['b'\]"),
        ("counts --topic a", "counts --topic a --window 5m", "window_ms is 60000, not 300000"),
        ("counts --topic a", "counts --topic a --by page", r"by is \[\], not \['page'\]"),
        ("counts --topic a", "counts --topic a --aggregate max(n)", "aggregate is"),
        ("counts --topic a", "counts --topic a --event-time ts", "event_time is '', not 'ts'"),
        ("counts --topic a", "sessions --topic a", "query is 'counts', not 'sessions'"),
        ("sessions --topic a", "sessions --topic a --gap 5m", "gap_ms is 1800000, not 300000"),
        ("join --impressions a --clicks b", "join --impressions b --clicks a", "topics is"),
        ("join --impressions a --clicks b", "join --impressions a --clicks b --within 2h", "within_ms is 3600000"),
    ],
)
def test_an_output_of_another_query_is_not_continued(run, first, other, message):
    """The checkpoint fits, so its results would be those of both."""
    assert problem(run(first)) == "the query starts"
    with pytest.raises(JobError, match=f"another query .*{message}.* give another --output"):
        raise run(other).exception
    assert problem(run(f"{first} --watermark 5m --follow --max-records 10")) == "the query starts"


def test_an_output_of_an_earlier_release_is_continued(tmp_path):
    """And belongs to the first query that continues it; so does one whose first query has not started."""
    stream = Stream("counts", tmp_path, "", False, 1, parameters={"topics": ["a"]})
    (tmp_path / "_headrace").mkdir()
    other = replace(stream, parameters={"topics": ["b"]})
    streams.check_parameters(other)
    streams.check_parameters(stream)
    stream.checkpoint.mkdir()
    streams.check_parameters(stream)
    with pytest.raises(JobError, match="topics"):
        streams.check_parameters(other)
