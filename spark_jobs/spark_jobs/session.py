"""Spark session of a job: its own if it was started by `python -m`, or that of spark-submit."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options of a local Spark, which save a second until the first row."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""Spark settings that the jobs require."""
STOP_SECONDS = 10.0
"""Timeout after which Java is killed if Spark has not stopped."""
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
    """Yield a session, and stop it at the end if it was started here."""
    from pyspark.sql import SparkSession

    # The jobs use no pandas; the installed version does not matter.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    # It logs errors as JSON with tracebacks; they are also raised and then reported in one line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and configured the master.
        session = SparkSession.builder.appName(f"headrace {name}").getOrCreate()
    else:
        session = _own_session(name, master)
    try:
        with signals_as_ctrl_c(session):
            yield prepared(session)
    finally:
        _stop(session)


@contextmanager
def signals_as_ctrl_c(session: SparkSession) -> Iterator[None]:
    """Cancel the jobs at Ctrl-C and SIGTERM, and raise KeyboardInterrupt; after a SIGTERM, SystemExit(143) at the end.

    Spark does not stop before its jobs do. PySpark's own handler cancels them on the connection to Java that is in use:
    py4j then mixes up the responses, or closes the connection twice, which is an error. A thread has a connection of
    its own. py4j closes the one whose response it no longer awaits, but only for a KeyboardInterrupt: after another
    exception the next call would read the response to the previous one. A SIGTERM of the process group ends Java, too,
    and calls fail in other ways.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # It logs the traceback of each call that fails,
        logging.getLogger().addFilter(_is_not_of_py4j)  # and of the call that is interrupted at the root.
        canceling = threading.Thread(target=_cancel_jobs, args=(session,), daemon=True)
        canceling.start()
        canceling.join(STOP_SECONDS)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if signal.SIGTERM in came:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _cancel_jobs(session: SparkSession) -> None:
    """Cancel all jobs; Java may have ended."""
    with suppress(Exception):
        session.sparkContext.cancelAllJobs()


def _stop(session: SparkSession) -> None:
    """Stop Spark. A job that was submitted while the others were cancelled ends with Java.

    spark-submit's Java ends with its own program and is not killed.
    """
    java: Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    killing = threading.Timer(STOP_SECONDS, java.kill if java is not None else lambda: None)
    killing.daemon = True
    killing.start()
    try:
        # A second Ctrl-C during the stop would leave Java running.
        session.stop()
    except Exception:  # Java does not answer: a SIGTERM of the process group ends it, too.
        if java is None:
            raise
        java.kill()
    killing.cancel()


def prepared(session: SparkSession) -> SparkSession:
    """Return a new session with the settings of the jobs in the same Spark."""
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
    """Yield the Java option that makes Spark log only errors from the start."""
    with tempfile.NamedTemporaryFile("w", prefix="headrace-", suffix=".properties") as file:
        file.write(LOGGING)
        file.flush()
        yield f"-Dlog4j2.configurationFile=file:{file.name}"
