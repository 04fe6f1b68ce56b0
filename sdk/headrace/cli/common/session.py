"""Common parts of all commands: shared options, connection, output, and error reporting.

`command` converts a function whose first parameter is a `Session` to a typer command: it adds the shared options to the
signature, creates the session, and reports every error as one line on stderr and an exit code. The clients come from
the context's object, where tests put fakes.
"""

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, Protocol

import typer

from headrace.cli.common.logins import find_login
from headrace.cli.common.rendering import JsonValue, Note, OutputFormat, Report, render
from headrace.cli.common.security_options import CREDENTIALS, SECURITY, given_security
from headrace.display.progress import progress_of_a_command
from headrace.display.visible_text import visible

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.producer.producer import Producer
    from headrace.client.table.table import Table

CLIENT_ID = "headrace-cli"

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
Directory = Annotated[
    str,
    typer.Option(
        "--dir",
        metavar="DIRECTORY",
        help="Directory with topics in place of a cluster, as `--bootstrap-servers dir:DIRECTORY`.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Timeout of one request.")]
Output = Annotated[OutputFormat, typer.Option("--output", case_sensitive=False, help="Format of the result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more on stderr.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and print the change without making it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

Parameters = ParamSpec("Parameters")


class Clients(Protocol):
    """Factory of the SDK's objects, with the SDK's settings."""

    def admin(self, **settings: Any) -> "Admin":
        """Return a new Admin."""

    def producer(self, **settings: Any) -> "Producer":
        """Return a new Producer."""

    def consumer(self, *topics: str, **settings: Any) -> "Consumer":
        """Return a new Consumer."""

    def table(self, name: str, **settings: Any) -> "Table":
        """Return a new Table."""


class SdkClients:
    """Factory of real clients. The SDK is imported when the first one is created."""

    def admin(self, **settings: Any) -> "Admin":
        """Return a new Admin."""
        from headrace.client.admin.admin import Admin

        return Admin(**settings)

    def producer(self, **settings: Any) -> "Producer":
        """Return a new Producer."""
        from headrace.client.producer.producer import Producer
        from headrace.wire.allocator import keep_large_buffers

        keep_large_buffers()
        return Producer(**settings)

    def consumer(self, *topics: str, **settings: Any) -> "Consumer":
        """Return a new Consumer."""
        from headrace.client.consumer.consumer import Consumer
        from headrace.wire.allocator import keep_large_buffers

        keep_large_buffers()
        return Consumer(*topics, **settings)

    def table(self, name: str, **settings: Any) -> "Table":
        """Return a new Table."""
        from headrace.client.table.table import Table

        return Table(name, **settings)


class UsageProblem(Exception):
    """The command line or its input is invalid; the exit code is 2.

    The message is one line; `explanation` has further lines, such as a grammar.
    """

    def __init__(self, message: str, explanation: str = "") -> None:
        super().__init__(message)
        self.explanation = explanation


class CommandFailed(Exception):
    """The command failed with this exit code. The message, if any, is printed on stderr."""

    def __init__(self, exit_code: int, message: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Session:
    """Run of one command. Belongs to the command's thread."""

    clients: Clients
    bootstrap_servers: str
    # Timeout of each request in seconds.
    timeout: float
    output: OutputFormat
    quiet: bool
    verbose: bool
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Settings of the SDK for TLS and credentials that were given."""
    program: Any = field(default=None, repr=False)
    """Root of the commands, as click runs them."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of all SDK objects. Without a credential, that of `headrace auth login` is used."""
        settings = {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": CLIENT_ID,
            "request_timeout_ms": max(1, round(self.timeout * 1000)),
            **self.security,
        }
        if not any(name in settings for name in CREDENTIALS):
            login = find_login(self.bootstrap_servers)
            if login is not None:
                settings["api_key_file"] = str(login)
        return settings

    def credential(self) -> str | None:
        """Return which credential is configured, without its secret."""
        settings = self.settings()
        if "api_key" in settings:
            return "HEADRACE_API_KEY"
        for name in ("api_key_file", "token_file", "ssl_certfile"):
            if name in settings:
                return f"{name}={settings[name]}"
        return None

    def admin(self) -> "Admin":
        """Return a new Admin; use it as a context manager."""
        return self.clients.admin(**self.settings())

    def table(self, name: str, **settings: Any) -> "Table":
        """Return a new Table; use it as a context manager."""
        return self.clients.table(name, **self.settings(), **settings)

    def run_command(self, arguments: Sequence[str]) -> int:
        """Run another command of the program in this process and return its exit code."""
        code = self.program.main(args=list(arguments), prog_name="headrace", standalone_mode=False, obj=self.clients)
        return code if isinstance(code, int) else 0

    def show(self, report: Report) -> None:
        """Print the result of the command."""
        write_out(render(report, self.output))

    def show_change(self, document: JsonValue, sentence: str) -> None:
        """Print a change: a sentence for people, which `--quiet` omits, or the document."""
        if self.output in (OutputFormat.JSON, OutputFormat.YAML) or not self.quiet:
            self.show(Report(document, (Note(sentence),)))

    def note(self, text: str) -> None:
        """Print a line on stderr, unless quiet."""
        if not self.quiet:
            tell(text)

    def detail(self, text: str) -> None:
        """Print a line on stderr, if verbose."""
        if self.verbose:
            tell(text)


def write_out(text: str) -> None:
    """Write text to stdout as UTF-8, independent of the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Ask for confirmation of a change on a terminal. Without a terminal, or with `--yes`, the change is made.

    Raises:
        CommandFailed: If the answer is not yes; the message is `otherwise`.
    """
    if yes or not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        from headrace.cli.common.exit_codes import ExitCode

        raise CommandFailed(ExitCode.FAILED, otherwise)


def tell(text: str) -> None:
    """Write one line to stderr."""
    print(f"headrace: {visible(text)}", file=sys.stderr, flush=True)


def command(
    *, connects: bool = True, makes_directory: bool = False
) -> Callable[[Callable[Concatenate[Session, Parameters], None]], Callable[..., None]]:
    """Return a decorator that converts a function `(session, ...)`, whose other parameters are options, to a command.

    Args:
        connects: adds `--bootstrap-servers`, `--dir` and `--timeout`.
        makes_directory: the directory of `--dir` need not exist.

    A function's own parameter, such as `output`, replaces the shared one of its name. A command with subcommands is run
    only without one.
    """

    def decorate(function: Callable[Concatenate[Session, Parameters], None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        names = {each.name for each in own}
        shared = [each for each in _shared_parameters(connects=connects) if each.name not in names]
        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            ctx: typer.Context = arguments.pop("ctx")
            if ctx.invoked_subcommand is not None:
                _refuse_options(ctx)
                return
            taken = {each.name: arguments.pop(each.name) for each in shared}
            if taken.get("directory") and not makes_directory and not os.path.isdir(taken["directory"]):
                raise typer.BadParameter(f"there is no directory {taken['directory']}", param_hint="--dir")
            session = Session(
                clients=ctx.obj if ctx.obj is not None else SdkClients(),
                bootstrap_servers=servers_of(taken),
                timeout=taken.get("timeout", 0.0),
                output=taken.get("output", OutputFormat.TABLE),
                quiet=taken["quiet"],
                verbose=taken["verbose"],
                security=given_security(ctx, taken),
                program=ctx.find_root().command,
            )
            _run(function, session, arguments)

        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        parameters = [context, *keyword, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        del run.__wrapped__
        return run

    return decorate


def _refuse_options(ctx: typer.Context) -> None:
    """Refuse options between a command and its subcommand, which has its own: they would do nothing."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"give {parameter.opts[0]} after `{ctx.invoked_subcommand}`", ctx=ctx)


def servers_of(taken: Mapping[str, Any]) -> str:
    """Return the bootstrap servers, or the directory in their place."""
    directory: str = taken.get("directory") or ""
    return f"dir:{directory}" if directory else taken.get("bootstrap_servers") or ""


def _shared_parameters(*, connects: bool) -> list[inspect.Parameter]:
    rows: list[tuple[str, Any, Any]] = [("output", Output, OutputFormat.TABLE)]
    if connects:
        rows.append(("bootstrap_servers", BootstrapServers, "localhost:7170"))
        rows.append(("directory", Directory, ""))
        rows.append(("timeout", Timeout, 10.0))
        rows += SECURITY
    rows += [("quiet", Quiet, False), ("verbose", Verbose, False)]
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in rows
    ]


def _run(function: Callable[..., None], session: Session, arguments: dict[str, Any]) -> None:
    """Run a command; report any error as one line and an exit code."""
    try:
        with progress_of_a_command(shown=not session.quiet):
            function(session, **arguments)
        sys.stdout.flush()
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except (Exception, KeyboardInterrupt) as error:
        raise typer.Exit(report_error(error)) from None


def report_error(error: BaseException) -> int:
    """Print an error on stderr and return the exit code. `HEADRACE_DEBUG=1` adds the traceback."""
    from headrace.cli.common.exit_codes import ExitCode, exit_code_of

    if os.environ.get("HEADRACE_DEBUG", "") not in ("", "0"):
        print(visible("".join(traceback.format_exception(error)), keep="\n"), file=sys.stderr)
    match error:
        case BrokenPipeError():
            _discard_output()
        case KeyboardInterrupt():
            pass
        case CommandFailed():
            if str(error):
                tell(one_line(str(error)))
            return error.exit_code
        case UsageProblem():
            tell(one_line(str(error)))
            if error.explanation:
                print(visible(error.explanation, keep="\n"), file=sys.stderr, flush=True)
            return ExitCode.USAGE
        case OSError():
            tell(one_line(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        case _:
            tell(one_line(_sentence(error)))
    return exit_code_of(error)


def _sentence(error: BaseException) -> str:
    from headrace.wire.errors import HeadraceError

    if isinstance(error, HeadraceError):
        stop = "" if error.message.endswith((".", "?", "!")) or not error.action else "."
        return f"{error.message}{stop} {error.action}"
    if isinstance(error, TimeoutError):
        return str(error)
    return f"{type(error).__name__}: {error} (a bug in headrace: HEADRACE_DEBUG=1 shows where; please report it)"


def one_line(text: str) -> str:
    """Return the text with each run of white space replaced by one space."""
    return " ".join(text.split())


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at exit does not fail on the closed pipe again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # stdout is not a file, as in tests, so that there is no pipe whose flush could fail.
    finally:
        os.close(nowhere)
