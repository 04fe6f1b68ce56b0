"""The Spark session of a job: its own where it is run by `python -m`, spark-submit's where that started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Spark inside one machine: a second less until the first row."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""What the jobs rely on."""
STOP_SECONDS = 10.0
"""Java is killed where Spark has not stopped by then."""
LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""


@contextmanager
def spark_session(name: str, master: str) -> Iterator[SparkSession]:
    """Yield a session and stop what was started for it."""
    from pyspark.sql import SparkSession

    # The jobs use no pandas; the installed version does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    # What it logs as JSON, traceback and all, is raised as well, and told in one line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, and has said where Spark runs.
        session = SparkSession.builder.appName(f"headrace {name}").getOrCreate()
    else:
        session = _own_session(name, master)
    try:
        with _sigterm_as_ctrl_c():
            yield prepared(session)
    finally:
        _stop(session)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, and raise SystemExit(143) after it.

    At Ctrl-C PySpark cancels the jobs, without which Spark does not stop, and py4j closes the connection whose answer
    it no longer waits for. It does so for a KeyboardInterrupt alone: after another exception the next call would wait
    for the answer to the last.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if came:
            raise SystemExit(128 + came[0]) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(session: SparkSession) -> None:
    """Stop Spark; what still runs ends with Java: a job that it was given while the others were cancelled.

    spark-submit's Java ends with its own program, and is not killed.
    """
    java: Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    killing = threading.Timer(STOP_SECONDS, java.kill if java is not None else lambda: None)
    killing.daemon = True
    killing.start()
    # A second Ctrl-C while Java ends would leave it running.
    session.stop()
    killing.cancel()


def prepared(session: SparkSession) -> SparkSession:
    """Return a session with the settings of the jobs, next to another one in the same Spark."""
    mine = session.newSession()
    for key, value in SETTINGS.items():
        mine.conf.set(key, value)
    return mine


def _own_session(name: str, master: str) -> SparkSession:
    from headrace.spark.java import use_java
    from pyspark.sql import SparkSession

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"headrace {name}").master(master)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    options = ""
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", str(max(2, os.cpu_count() or 2)))
        options = LOCAL_JAVA_OPTIONS
    with quiet_logging() as quiet:
        return builder.config("spark.driver.extraJavaOptions", f"{options} {quiet}".strip()).getOrCreate()


@contextmanager
def quiet_logging() -> Iterator[str]:
    """Yield the Java option that makes Spark log errors only, from its first line on."""
    with tempfile.NamedTemporaryFile("w", prefix="headrace-", suffix=".properties") as file:
        file.write(LOGGING)
        file.flush()
        yield f"-Dlog4j2.configurationFile=file:{file.name}"
