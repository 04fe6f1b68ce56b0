"""`headrace cluster log-level`: what servers write to their logs, changed while they run."""

from typing import Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import JsonValue, Note, Report
from headrace.cli.common.session import CommandFailed, Session, command

Level = Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error.")]


@command()
def log_level(
    session: Session,
    *,
    level: Level,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="NAME",
            help="A server, for example broker-1 or coordinator-a; repeatable. The default is all.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--for", metavar="SECONDS", min=0, help="Duration; 0 means until the server stops.")
    ] = 600.0,
) -> None:
    """Change the log level of servers, for ten minutes unless --for is given.

    At debug, servers log one line per call, with the request id that errors of the client name.

    \b
    Examples:
      headrace cluster log-level debug --server broker-2 --for 60
      headrace cluster log-level info --for 0
    """
    with session.admin() as admin:
        results = admin.set_log_level(level, servers=server or None, duration_ms=round(seconds * 1000))
    rows: list[dict[str, JsonValue]] = [
        {"server": each.name, "level": level, "previous_level": each.previous_level, "error": each.error}
        for each in results
    ]
    failed = [each for each in results if each.error]
    until = f" for {seconds:g} s" if seconds else ""
    sentence = f"log level {level}{until} on {counted(len(results) - len(failed), 'server')}"
    session.show(Report(rows, (Note(sentence), *(Note(f"{each.name}: {each.error}") for each in failed))))
    if failed:
        raise CommandFailed(ExitCode.FAILED)
