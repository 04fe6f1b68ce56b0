"""The jobs' command lines: help, exit codes and errors in one sentence. Without Spark."""

import contextlib
import json
import subprocess
import sys

import headrace
import pytest
from headrace.client.loading.tables.errors import TableBusyError
from headrace.client.loading.tables.parquet_table import ParquetTable
from headrace.spark.errors import DataLossError
from headrace.wire.errors import UnknownTopicError
from spark_jobs.audit_verdict import State, Verdict
from spark_jobs.command import JobError, explain, run_app, run_job

from spark_jobs import access_log, audit, load, windows, workload

NOWHERE = ["-b", "127.0.0.1:1"]


def run(job, *arguments):
    """Run a job's command line; its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["job", *arguments])
        patch.setattr("signal.signal", lambda *_: None)
        if job is windows:
            run_app(windows.app, "windows")
        run_job(getattr(job, job.__name__.rpartition(".")[2]))
    return ended.value.code


@pytest.mark.parametrize(
    "arguments", [(load,), (audit,), (access_log,), (workload,), (windows,), (windows, "join"), (windows, "counts")]
)
def test_help_describes_what_a_job_does(arguments, capsys):
    """At once, and without Spark."""
    assert run(*arguments, "--help") == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: python -m spark_jobs.")
    assert arguments == (windows,) or "--json" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((load, "--topic", "t"), "--table"),
        ((load, "--topik", "t"), "--topik"),
        ((load, "--topic", "t", "--table", "x", "--format", "csv"), "--format"),
        ((load, "--topic", "t", "--table", "s3://bucket/t"), "s3://bucket/t: plain Parquet files cannot be"),
        ((access_log, "--table", "s3://bucket/t", "--topic", "t"), "'--table': s3:// is no directory: a table lies on"),
        ((windows, "counts", "--topic", "t", "--output", "gs://b/t"), "'--output': gs:// is no directory"),
        ((access_log, "--table", "x", "--file", __file__, "--accept-data-loss"), "--accept-data-loss is for --topic"),
        ((access_log, "--table", "x"), "either --file or --topic"),
        (
            (access_log, "--table", "x", "--topic", "t", "--session-gap", "soon"),
            "--session-gap 'soon' is not a duration",
        ),
        ((workload, "--local"), "--output"),
        ((workload, "--output", "s3://bucket/t"), "'--output': s3:// is no directory"),
        ((workload, "--output", "x", "--file", "/no/such/file"), "--file"),
        ((workload, "--output", "x", "--file", __file__, "--topic", "t"), "either --file or --topic"),
        ((audit, "--audit-topic", "a", "--table", "."), "requires exactly one --topic"),
        ((windows, "counts", "--topic", "t", "--output", "x", "--window", "1 minute"), "--window '1 minute'"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    """Before anything is started or made."""
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        (load, "--topic", "t", "--table", "x"),
        (access_log, "--topic", "t", "--table", "x"),
        (audit, "--audit-topic", "a"),
        (windows, "sessions", "--topic", "t", "--output", "x"),
    ],
)
def test_a_cluster_that_does_not_answer_ends_a_job_before_spark_starts(arguments, capsys, tmp_path, monkeypatch):
    """Exit code 3, in one line, and no directory is made."""
    monkeypatch.chdir(tmp_path)
    assert run(*arguments, *NOWHERE) == 3
    assert "no broker or coordinator answered" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_without_a_trace_says_how_to_begin_one(capsys, monkeypatch):
    """Brokers create the topic; any other one is named as it is."""

    def refuse(servers, topic):
        raise UnknownTopicError(f"there is no topic named {topic!r}")

    monkeypatch.setattr(workload, "check_topics", refuse)
    for topic, said in (
        ("__table_trace", "headrace topic alter TABLE --config trace_sample="),
        ("t", "Create the topic"),
    ):
        assert run(workload, "--output", "x", "--topic", topic) == 4
        assert said in capsys.readouterr().err


def verdict(state):
    return Verdict("t", 0, 60_000, state, 5, 5, 0, 4, 1, 0, 0, 1, ())


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.COMPLETE, 0),
        (State.OPEN, 0),
        (State.REMOVED, 0),
        (State.INCOMPLETE, 5),
        (State.UNCONFIRMED, 8),
        (State.UNCLAIMED, 8),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_of_an_audit_shows_whether_all_is_there(state, code, as_json, capsys, monkeypatch):
    """For people and for programs; the summary is printed in every case."""
    monkeypatch.setattr(audit, "check_topics", lambda *_: None)
    monkeypatch.setattr(audit, "spark_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(audit, "run_audit", lambda *_: [verdict(state)])
    assert run(audit, "--audit-topic", "a", "--quiet", *(["--json"] if as_json else [])) == code
    said = capsys.readouterr().out
    if as_json:
        document = json.loads(said)
        assert document["windows"][0]["state"] == state
        assert document["complete"] == (code == 0)
    else:
        assert state.value in said


def test_what_a_data_source_raised_is_found_inside_sparks_tracebacks():
    """One sentence, and none of the lines around it."""
    inside = RuntimeError(
        "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: [DATA_SOURCE_ERROR] No\n"
        '  File "x.py", line 3, in read\nheadrace.spark.errors.DataLossError: t-0: offset 5 was wanted\n\tat java.x'
    )
    assert explain(inside) == "t-0: offset 5 was wanted"
    advice = "Keep records longer (retention_ms), or set failOnDataLoss=false to continue without them."
    assert "or give --accept-data-loss, where a job has it, to continue" in explain(DataLossError("4 were removed"))
    assert advice in str(DataLossError("4 were removed"))
    analysis = RuntimeError("noise\n[UNRESOLVED_COLUMN] A column cannot be resolved.\n'Project")
    assert explain(analysis) == "[UNRESOLVED_COLUMN] A column cannot be resolved."
    assert explain(TableBusyError("another job writes")) == "another job writes"
    assert explain(headrace.ConfigError("x is wrong", action="Fix it.")) == "x is wrong. Fix it."


@pytest.mark.parametrize("given", [True, False])
def test_jobs_that_continue_accept_data_loss_on_request(given, monkeypatch):
    """The option reaches the reader of the topic."""
    more = ["--accept-data-loss"] * given
    found = []
    monkeypatch.setattr(windows, "_run", lambda stream, *_: found.append(stream.accept_loss))
    assert run(windows, "counts", "--topic", "t", "--output", "x", *more) == 0
    monkeypatch.setattr(access_log, "check_topics", lambda *_: None)
    monkeypatch.setattr(access_log, "spark_session", lambda *_: contextlib.nullcontext())

    def load_topic(_spark, wanted, _progress):
        found.append(wanted.accept_loss)
        raise JobError("enough")

    monkeypatch.setattr(access_log, "load_topic", load_topic)
    assert run(access_log, "--topic", "t", "--table", "x", "--quiet", *more) == 1
    assert found == [given, given]


def test_a_table_in_use_is_said_before_anything_is_read(tmp_path):
    """Nothing of the running job is touched: its attempt stays."""
    from headrace.client.loading.tables.attempts import begin, table_lock

    with table_lock(tmp_path):
        attempt = begin(tmp_path)
        with pytest.raises(TableBusyError), table_lock(tmp_path):
            ParquetTable(tmp_path).recover()
        assert attempt.directory.exists()


def test_a_log_without_one_readable_line_fails() -> None:
    """The exit code reports it, as a nightly job's summary stays unread; one line that fits is enough."""
    access_log.check_readable(access_log.AccessSummary({}))
    access_log.check_readable(access_log.AccessSummary({}, hits=1, bad_lines=5))
    with pytest.raises(JobError, match="none of the 5,000 lines could be read") as caught:
        access_log.check_readable(access_log.AccessSummary({}, bad_lines=5_000))
    assert caught.value.exit_code == 1


SIGNAL_IN_A_FINALIZER = """
import signal, threading
from spark_jobs.command import run_job

class Finalized:
    def __del__(self):
        signal.raise_signal(signal.{name})

def job():
    Finalized()
    threading.Event().wait(20.0)

run_job(job)
"""


@pytest.mark.parametrize(
    ("name", "code", "said"), [("SIGINT", 130, "error: interrupted; commits so far are kept\n"), ("SIGTERM", 143, "")]
)
def test_a_signal_within_a_finalizer_ends_a_job(name, code, said):
    """Python drops what a finalizer raises, and py4j has one for every Java object: the job would run for ever."""
    arguments = [sys.executable, "-c", SIGNAL_IN_A_FINALIZER.format(name=name)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (code, said)
