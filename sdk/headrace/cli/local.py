"""`headrace local`: a real cluster on this machine, run by `headrace_devcluster` as a child process.

That package depends on the servers and etcd; it is never imported here, so that the SDK stays small. The child's output
and exit code become those of the command; Ctrl-C reaches it through the terminal's process group.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import CommandFailed, tell
from headrace.testing import INSTALL_DEVCLUSTER

MODULE = "headrace_devcluster"
PROGRAM_VARIABLE = "HEADRACE_LOCAL_PROGRAM"
"""Environment variable with the program name in the child's help."""

app = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=True, rich_markup_mode=None)

PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": list[str]()}
"""Pass all options, also `--help`, to the child."""

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OPTIONS OF THE LOCAL CLUSTER]...", help="Options of the local cluster; `--help` lists them."
    ),
]


@app.command("up", context_settings=PASS_THROUGH)
def up(arguments: Arguments = None) -> None:
    """Start etcd, coordinators on ports 7170 and 7171, and brokers on 7181 to 7183; with `--single` one process."""
    _run("up", arguments)


@app.command("down", context_settings=PASS_THROUGH)
def down(arguments: Arguments = None) -> None:
    """Stop the local cluster."""
    _run("down", arguments)


@app.command("status", context_settings=PASS_THROUGH)
def status(arguments: Arguments = None) -> None:
    """Show the processes of the local cluster, with their addresses and state."""
    _run("status", arguments)


def child_command(verb: str, arguments: Sequence[str]) -> list[str]:
    """Return the child's command line."""
    return [sys.executable, "-m", MODULE, verb, *arguments]


def _run(verb: str, arguments: Sequence[str] | None) -> None:
    if importlib.util.find_spec(MODULE) is None:
        tell(f"the local cluster is not installed. {INSTALL_DEVCLUSTER}")
        raise typer.Exit(ExitCode.FAILED)
    raise typer.Exit(run_child(child_command(verb, arguments or ())))


def run_child(arguments: Sequence[str]) -> int:
    """Run a child to its end and return its exit code; after Ctrl-C wait until it has stopped its own children.

    Raises:
        CommandFailed: If the child cannot be started.
    """
    try:
        child = subprocess.Popen(arguments, env={**os.environ, PROGRAM_VARIABLE: "headrace local"})
    except OSError as error:
        raise CommandFailed(ExitCode.FAILED, f"cannot start {arguments[0]}: {error.strerror}") from error
    interrupted = False
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            interrupted = True  # The terminal also sent the signal to the child, which is stopping its cluster.
    if interrupted or code == -2:
        return ExitCode.INTERRUPTED
    return code if code >= 0 else 128 - code
