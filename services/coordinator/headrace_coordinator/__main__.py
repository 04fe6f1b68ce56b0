"""The command `headrace-coordinator`: reads the settings and runs one coordinator until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from headrace_server import lifecycle
from headrace_server.lifecycle import ExitCode
from headrace_server.settings import SettingsError, load_settings

from headrace_coordinator.app import serve
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def run(
    config: Annotated[Path | None, typer.Option(help="TOML file with the settings.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="One setting as name=value; may be repeated.")] = None,
) -> None:
    """Run a coordinator. Settings come from --config, HEADRACE_COORDINATOR_<NAME> and --set, the last one wins."""
    try:
        settings = load_settings(
            CoordinatorSettings,
            config_file=config,
            environ=os.environ,
            environ_prefix=ENVIRON_PREFIX,
            overrides=set_ or [],
        )
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(ExitCode.BAD_SETTINGS) from None
    code = lifecycle.run(lambda stop: serve(settings, stop), stop_timeout_seconds=settings.stop_timeout_ms / 1000)
    raise typer.Exit(code)


def main() -> None:
    """Start the command line."""
    cli()


if __name__ == "__main__":
    main()
