"""The end of a job's Spark, with doubles of it. The real one is in tests/integration/test_spark_jobs.py."""

import signal
import threading
from types import SimpleNamespace

import pytest

from spark_jobs import session


def test_java_is_killed_where_spark_does_not_stop(monkeypatch):
    """A job that was begun while the others were cancelled would keep it for ever."""
    monkeypatch.setattr(session, "STOP_SECONDS", 0.01)
    killed = threading.Event()
    java = SimpleNamespace(kill=killed.set)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=java)), stop=lambda: killed.wait(20.0)
    )
    session._stop(spark)
    assert killed.is_set()


def test_a_sigterm_of_the_process_group_ends_the_job_as_one_of_the_process():
    """Java has ended, too, so that calls of it and the stop fail: no error of the job."""

    def refuse():
        raise ConnectionRefusedError

    killed = threading.Event()
    gateway = SimpleNamespace(proc=SimpleNamespace(kill=killed.set))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway, cancelAllJobs=refuse), stop=refuse)
    with pytest.raises(SystemExit) as ended, session.signals_as_ctrl_c(spark):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            refuse()
    assert ended.value.code == 143
    session._stop(spark)
    assert killed.is_set()


def test_ctrl_c_cancels_the_jobs_on_another_connection_than_the_one_in_use():
    """A thread has its own. On the one of a call that has been sent, py4j closes it twice, which is an error."""
    canceled, before = [], signal.getsignal(signal.SIGINT)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(cancelAllJobs=lambda: canceled.append(threading.current_thread()))
    )
    with pytest.raises(KeyboardInterrupt), session.signals_as_ctrl_c(spark):
        signal.raise_signal(signal.SIGINT)
    assert len(canceled) == 1
    assert canceled[0] is not threading.current_thread()
    assert signal.getsignal(signal.SIGINT) is before


def test_java_of_spark_submit_is_not_killed(monkeypatch):
    """Only the session has the process."""
    monkeypatch.setattr(session, "STOP_SECONDS", 0.0)
    stopped = threading.Event()
    session._stop(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace()), stop=stopped.set))
    assert stopped.is_set()
