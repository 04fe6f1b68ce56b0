"""Common parts of the jobs' command lines: shared options, error output, and exit codes.

    code  meaning
    0     success; of `audit`: all records have arrived
    1     failure; the message contains the next step
    2     the command line is wrong; nothing was started
    3     no broker or coordinator could be reached
    4     the topic does not exist
    5     `audit`: records are missing or duplicated
    8     `audit`: unknown, because counts of a producer are missing
    130   interrupted (Ctrl-C): uncommitted rows are not in the table
    143   terminated by SIGTERM, with the same effect

Codes up to 5 are those of the `headrace` command.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from headrace.cli.common.exit_codes import ExitCode, exit_code_of
from headrace.cli.common.stop_signals import stop_signals
from headrace.client.loading.tables.errors import LoadError
from headrace.wire.errors import HeadraceError
from rich.console import Console

CLICK_ERROR: Any = typer.BadParameter.__mro__[2]
"""click's class, or that of the copy in newer releases of typer."""

INCOMPLETE = 5
UNDECIDED = 8

BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        envvar="HEADRACE_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="Bootstrap servers (brokers or coordinators).",
    ),
]
DEFAULT_SERVERS = "localhost:7170"
AsJson = Annotated[bool, typer.Option("--json", help="Print only the summary, as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Master = Annotated[
    str, typer.Option(help="Spark master, unless spark-submit sets it: local[*], local[2], spark://host:7077.")
]
DEFAULT_MASTER = "local[*]"


def local_directory(path: Path) -> Path:
    """Return `path` unless it is the URL of an object store, which would become a local directory of that name.

    Raises:
        BadParameter: If it is one.
    """
    scheme, colon, _ = str(path).partition(":/")
    if colon and scheme.isalnum():
        raise typer.BadParameter(
            f"{scheme}:// is no directory: a table lies on a local disk or a shared file system, by its plain path"
        )
    return path


_DIRECTORY = "a local disk or a shared file system; object stores (s3:// and others) are not supported."
TableDirectory = Annotated[
    Path,
    typer.Option(
        "--table",
        file_okay=False,
        callback=local_directory,
        help=f"Directory of the table, created if missing: on {_DIRECTORY}",
    ),
]
OutputDirectory = Annotated[
    Path,
    typer.Option(
        file_okay=False, callback=local_directory, help=f"Directory of the results and the checkpoint: on {_DIRECTORY}"
    ),
]
AcceptDataLoss = Annotated[
    bool, typer.Option("--accept-data-loss", help="Continue after retention removed records that were not read yet.")
]
EventTime = Annotated[
    str,
    typer.Option(
        metavar="SQL",
        help="Time of a row's event, as an SQL expression over its columns with a timestamp result, such as "
        "\"timestamp_millis(get_json_object(string(value), '$.at_ms')::bigint)\". "
        "The default is the time of the record.",
    ),
]


class JobError(Exception):
    """The job failed; the message has the next step."""

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> JobError:
    """Return the error for an invalid command line."""
    return JobError(message, ExitCode.USAGE)


def run_job(command: Callable[..., None]) -> NoReturn:
    """Run a job's command line and exit."""
    run_app(job_app(command), command.__name__)


def job_app(command: Callable[..., None]) -> typer.Typer:
    """Return the command line of a job with one command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(command)
    return app


def run_app(app: typer.Typer, name: str) -> NoReturn:
    """Run a job with several commands and exit."""
    program = f"python -m spark_jobs.{name}"
    try:
        with stop_signals(signal.SIGTERM):
            result = typer.main.get_command(app).main(prog_name=program, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        result = ExitCode.INTERRUPTED
    except Exception as error:
        if not isinstance(error, CLICK_ERROR):
            _fail(explain(error), _exit_code(error))
        _fail(f"{error.format_message().rstrip('.')}. Try '{program} --help'.", ExitCode.USAGE)
    if result == ExitCode.INTERRUPTED:
        _fail("interrupted; commits so far are kept", ExitCode.INTERRUPTED)
    sys.exit(result if isinstance(result, int) else 0)


def show(summary: dict[str, Any], as_json: bool, text: Callable[[Console], None]) -> None:
    """Print the result of a job, as JSON for programs or as text for people."""
    if as_json:
        print(json.dumps(summary, default=str), flush=True)
    else:
        # A file or a pipe has no width; do not wrap tables.
        text(Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160))


_OPTION = "set failOnDataLoss=false", "give --accept-data-loss, where a job has it,"
"""Option of the data source in its errors, and that of the jobs."""


def explain(error: BaseException) -> str:
    """Return an error in one sentence; errors of a data source are extracted from two nested tracebacks of Spark."""
    if isinstance(error, HeadraceError | LoadError | JobError):
        return str(error).replace(*_OPTION)
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        name, colon, rest = line.partition(": ")
        if colon and name.startswith("headrace.") and name.endswith("Error"):
            return rest.replace(*_OPTION)
    for line in lines:
        if line.startswith("[") and "] " in line:
            return line
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return next((line for line in lines if line and not line.startswith("An error occurred while")), repr(error))
    return "".join(traceback.format_exception(error)).rstrip()


def _exit_code(error: BaseException) -> int:
    return error.exit_code if isinstance(error, JobError) else exit_code_of(error)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(code)
