"""The end of a job's Spark, with doubles of it. The real one is in tests/integration/test_spark_jobs.py."""

import threading
from types import SimpleNamespace

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


def test_java_of_spark_submit_is_not_killed(monkeypatch):
    """Only the session has the process."""
    monkeypatch.setattr(session, "STOP_SECONDS", 0.0)
    stopped = threading.Event()
    session._stop(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace()), stop=stopped.set))
    assert stopped.is_set()
