"""Entry point of `headrace`: the command tree, and the handling of usage errors.

Commands report their own errors (`session.command`); only usage errors, interrupts and help reach `run`. typer builds a
command from a function with typed parameters as options, so that mypy checks the command line like other code.
"""

import functools
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace import __version__
from headrace.cli import local
from headrace.cli.auth import commands as auth
from headrace.cli.bench import commands as bench
from headrace.cli.broker import commands as broker
from headrace.cli.cluster import commands as cluster
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Facts, JsonValue, Report
from headrace.cli.common.session import Clients, SdkClients, Session, command, one_line, report_error, tell
from headrace.cli.common.stop_signals import stop_signals
from headrace.cli.completion import PROGRAM, completion
from headrace.cli.doctor import commands as doctor
from headrace.cli.fetch import commands as fetch
from headrace.cli.grant import commands as grant
from headrace.cli.group import commands as group
from headrace.cli.help_topics import help_command
from headrace.cli.issuer import commands as issuer
from headrace.cli.load import commands as load
from headrace.cli.mirror import commands as mirror
from headrace.cli.partition import commands as partition
from headrace.cli.promote import commands as promote
from headrace.cli.quota import commands as quota
from headrace.cli.records import consume, produce
from headrace.cli.role import commands as role
from headrace.cli.schema import commands as schema
from headrace.cli.sql import commands as sql
from headrace.cli.table import commands as table
from headrace.cli.topic import commands as topic
from headrace.cli.user import commands as user

EPILOG = (
    "Exit codes: 0 success, 1 failure, 2 usage, 3 unreachable, 4 not found, 5 unhealthy, 6 timeout, "
    "7 already exists, 8 denied, 130 interrupted; see `headrace help exit-codes`."
)

# click's errors. Newer releases of typer contain a copy of click, so the classes are found through typer's exports.
USAGE_ERROR = typer.BadParameter.__mro__[1]
CLICK_ERROR = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name=PROGRAM,
    help="Command line of headrace, a distributed log.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic.app, name="topic")
app.add_typer(partition.app, name="partition")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("sql")(sql.sql)
app.command("fetch")(fetch.fetch)
app.command("promote")(promote.promote)
app.command("load")(load.load)
app.add_typer(table.app, name="table")
app.add_typer(group.app, name="group")
app.add_typer(mirror.app, name="mirror")
app.add_typer(cluster.app, name="cluster")
app.add_typer(broker.app, name="broker")
app.add_typer(schema.app, name="schema")
app.add_typer(auth.app, name="auth")
app.add_typer(user.app, name="user")
app.add_typer(role.app, name="role")
app.command("grant")(grant.grant)
app.command("revoke")(grant.revoke)
app.command("grants")(grant.list_grants)
app.command("can")(grant.can)
app.add_typer(issuer.app, name="issuer")
app.add_typer(quota.app, name="quota")
app.add_typer(doctor.app, name="doctor")
app.command("bench")(bench.bench)
app.add_typer(local.app, name="local")
app.command("completion")(completion)
app.command("help")(help_command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command("version")
@command(connects=False)
def version(session: Session) -> None:
    """Print the versions of headrace, Python and the main dependencies."""
    from importlib.metadata import version as installed

    names = ("headrace", "grpcio", "protobuf", "numpy")
    document: dict[str, JsonValue] = {name: installed(name) for name in names}
    document["python"] = platform.python_version()
    session.show(Report(document, (Facts(tuple(document.items())),)))


@functools.cache
def command_tree() -> Any:
    """Return the root of the commands as click runs them, built once: typer inspects every function for 65 ms."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str], clients: Clients) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: arguments without the program's name.
        clients: factory of the SDK's objects.
    """
    if "_HEADRACE_COMPLETE" in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # imported there, not marked

        completion_init()
    try:
        with stop_signals():
            result = command_tree().main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=clients)
        sys.stdout.flush()
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, KeyboardInterrupt) as error:
        return report_error(error)
    except Exception as error:
        if not isinstance(error, CLICK_ERROR):
            return report_error(error)
        return _usage_error(error)
    return result if isinstance(result, int) else ExitCode.OK


def _usage_error(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError" or (context is not None and message == context.get_help()):
        print(message, file=sys.stderr, flush=True)
        return ExitCode.USAGE
    path = context.command_path if context is not None else PROGRAM
    sentence = one_line(message).replace("Value error, ", "")
    tell(f"{sentence if sentence.endswith(('.', '?', ')')) else sentence + '.'} Try '{path} --help'.")
    return ExitCode.USAGE if isinstance(error, USAGE_ERROR) else ExitCode.FAILED


def main() -> None:
    """Run `headrace` and exit."""
    if os.environ.get("HEADRACE_DEBUG", "") in ("", "0"):
        # gRPC logs failed handshakes; the command reports them in one sentence.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(run(sys.argv[1:], SdkClients()))
