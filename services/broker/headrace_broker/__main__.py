"""The command `headrace-broker`: `run` (the default) and `dump`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from headrace.wire.errors import HeadraceError
from headrace_server.lifecycle import ExitCode
from headrace_server.lifecycle import run as run_service
from headrace_server.settings import load_settings

from headrace_broker.allocator import keep_large_buffers
from headrace_broker.app import serve
from headrace_broker.settings import ENVIRON_PREFIX, BrokerSettings
from headrace_broker.storage.dump import dump

cli = typer.Typer(add_completion=False, invoke_without_command=True, help="A headrace broker.")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
SetOption = Annotated[list[str], typer.Option("--set", help="name=value, over file and environment; repeatable.")]


@cli.callback()
def _default(context: typer.Context, config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    if context.invoked_subcommand is None:
        raise typer.Exit(start(config, set_))


@cli.command()
def run(config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    """Run the broker until SIGTERM or SIGINT."""
    raise typer.Exit(start(config, set_))


cli.command("dump")(dump)


def start(config: Path | None, overrides: list[str]) -> ExitCode:
    """Read the settings, run the broker, and give the exit code."""
    try:
        settings = load_settings(
            BrokerSettings,
            config_file=config,
            environ=os.environ,
            environ_prefix=ENVIRON_PREFIX,
            overrides=overrides,
        )
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.BAD_SETTINGS
    keep_large_buffers()
    return run_service(lambda stop: serve(settings, stop), stop_timeout_seconds=settings.stop_timeout_ms / 1000)


def main() -> None:
    """Run the command line."""
    cli()


if __name__ == "__main__":
    main()
