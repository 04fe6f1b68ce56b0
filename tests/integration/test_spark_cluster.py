"""A real Spark cluster on loopback, a master and two workers, reading and writing topics of a real cluster of ours."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster

from tests.integration.replicated import until
from tests.integration.spark_parts import PATIENCE_SECONDS, Topic

DRIVER = Path(__file__).with_name("spark_cluster_driver.py")
ONLY_THE_SDK = """
import importlib.abc, sys

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "psutil", "typer", "rich", "structlog", "headrace_server", "deltalake"}:
            raise ModuleNotFoundError(f"{name} is not on this executor", name=name)

sys.meta_path.insert(0, Refused())
"""


class SparkCluster:
    """Spark's own standalone master and workers, one core each, on ports of the kernel's choice."""

    def __init__(self, directory: Path) -> None:
        from headrace.spark.java import use_java
        from pyspark.find_spark_home import _find_spark_home

        use_java()
        self._directory = directory
        self._spark_class = Path(_find_spark_home()) / "bin" / "spark-class"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self.master = self._there(self._start("Master", []), r"Starting Spark master at (spark://\S+)")
        works = [str(directory / f"worker-{number}") for number in (1, 2)]
        for log in [self._start("Worker", ["-c", "1", "-m", "600M", "-d", work, self.master]) for work in works]:
            self._there(log, r"registered with master ()")

    def _start(self, kind: str, arguments: list[str]) -> Path:
        """Start one; gives its log."""
        log = self._directory / f"{kind}-{len(self._processes)}.log"
        command = [str(self._spark_class), f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", "127.0.0.1"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--port", "0", "--webui-port", "0", *arguments],
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _there(self, log: Path, says: str) -> str:
        """Wait until a log says that its process is there; gives what it says besides."""

        def said() -> re.Match[str] | None:
            assert not any(process.poll() for process in self._processes), log.read_text()[-3000:]
            return re.search(says, log.read_text())

        return until(said, log.stem, PATIENCE_SECONDS)[1]

    def close(self) -> None:
        """End all, with the executors, which are in their workers' process groups."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workers_read_one_topic_and_write_another(
    spark_session: object, spark_cluster: LocalCluster, standalone: SparkCluster, topic_name: str, tmp_path: Path
) -> None:
    """Each reads its share, with nothing but the SDK to import. A task that dies amid its rows and is tried again, by
    whichever worker, stores nothing twice."""
    topic, target = Topic(spark_cluster, topic_name), Topic(spark_cluster, f"{topic_name}-copy")
    topic.write({0: 30_000, 1: 30_000}, batch=5_000)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(ONLY_THE_SDK)
    done = subprocess.run(
        [sys.executable, str(DRIVER), standalone.master, topic.servers, topic.name, target.name],
        env={**standalone.environment, "EXECUTOR_PATH": str(tmp_path / "path")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    executors = json.loads(done.stdout.strip().splitlines()[-1])["executors"]
    assert sorted(executors.values()) == [30_000, 30_000]
    assert "this try ends here" in done.stderr
    assert sorted(target.values()) == sorted(row[2] for row in topic.rows())
