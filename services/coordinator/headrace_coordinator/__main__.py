"""The command `headrace-coordinator`: `run` (the default), and `new-generation` after a restore of etcd."""

from __future__ import annotations

# ruff: noqa: E402
import gc

gc.disable()  # What is imported stays: looking for garbage meanwhile is an eighth of the imports.

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from headrace.wire.errors import HeadraceError
from headrace_server import lifecycle
from headrace_server.lifecycle import ProcessExitCode
from headrace_server.settings import SettingsError, load_settings

from headrace_coordinator.app import serve
from headrace_coordinator.new_generation import begin_generation
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings

gc.enable()

cli = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True, help="A headrace coordinator."
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="One setting as name=value, over file and environment; repeatable.")
]


@cli.callback()
def _default(context: typer.Context, config: ConfigOption = None, set_: SetOption = None) -> None:
    if context.invoked_subcommand is None:
        raise typer.Exit(start(config, set_))


@cli.command()
def run(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Run a coordinator. Settings come from --config, HEADRACE_COORDINATOR_<NAME> and --set, the last one wins."""
    raise typer.Exit(start(config, set_))


@cli.command("new-generation")
def new_generation(
    config: ConfigOption = None,
    set_: SetOption = None,
    inventory: Annotated[
        list[Path] | None, typer.Option("--inventory", help="What `headrace-broker inventory` printed; one a broker.")
    ] = None,
    lost: Annotated[list[int] | None, typer.Option("--lost", help="A broker whose disk is gone for good.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Begin it; else only say what would be done.")] = False,
) -> None:
    """Bring the cluster back under an etcd that was restored from a backup, with everything stopped.

    The backup's in-sync sets are not trusted: the logs in the exported states decide.
    """
    try:
        for line in asyncio.run(
            begin_generation(_read_settings(config, set_), inventory or [], lost or [], apply=apply)
        ):
            print(line)
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(
            ProcessExitCode.BAD_SETTINGS if isinstance(error, SettingsError) else ProcessExitCode.FAILED
        ) from None


def start(config: Path | None, overrides: list[str] | None) -> ProcessExitCode:
    """Read the settings, run the coordinator, and give the exit code."""
    try:
        settings = _read_settings(config, overrides)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return ProcessExitCode.BAD_SETTINGS
    return lifecycle.run(lambda stop: serve(settings, stop), stop_timeout_seconds=settings.stop_timeout_ms / 1000)


def _read_settings(config: Path | None, overrides: list[str] | None) -> CoordinatorSettings:
    return load_settings(
        CoordinatorSettings,
        config_file=config,
        environ=os.environ,
        environ_prefix=ENVIRON_PREFIX,
        overrides=overrides or [],
    )


def main() -> None:
    """Start the command line."""
    cli()


if __name__ == "__main__":
    main()
