"""The command `headrace-broker`: `run` (the default), `drain`, `trust-clock`, `export-log-state` and `dump`."""

from __future__ import annotations

# ruff: noqa: E402
import gc

gc.disable()  # Imported objects are never garbage; collections would take an eighth of the import time.

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from headrace.log.dump import dump
from headrace.wire.allocator import keep_large_buffers
from headrace.wire.errors import HeadraceError
from headrace_server.lifecycle import ProcessExitCode, report_failure
from headrace_server.lifecycle import run as run_service
from headrace_server.settings import check_advertised_address, load_settings

from headrace_broker.app import serve
from headrace_broker.drain import drain as drain_broker
from headrace_broker.log_state_export import as_text, export_log_state
from headrace_broker.say_time import say_time
from headrace_broker.settings import ENVIRON_PREFIX, BrokerSettings

gc.enable()

cli = typer.Typer(add_completion=False, invoke_without_command=True, help="A headrace broker.")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
SetOption = Annotated[
    list[str], typer.Option("--set", help="Setting as name=value; overrides file and environment; repeatable.")
]


@cli.callback()
def _default(context: typer.Context, config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    if context.invoked_subcommand is None:
        raise typer.Exit(start(config, set_))


@cli.command()
def run(config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    """Run the broker until SIGTERM or SIGINT."""
    raise typer.Exit(start(config, set_))


@cli.command()
def drain(
    config: ConfigOption = None,
    set_: SetOption = [],  # noqa: B006
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout in seconds.")] = 60.0,
) -> None:
    """Hand over what the broker with these settings leads, and wait until it may be stopped. It need not be stopped
    then: its next start ends the drain.
    """
    try:
        print(asyncio.run(drain_broker(_read_settings(config, set_), timeout)))
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None


@cli.command("trust-clock")
def trust_clock(config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    """Declare this machine's clock correct for all brokers and coordinators: those that agree with it end their
    doubt.
    """
    try:
        now_ms = asyncio.run(say_time(_read_settings(config, set_)))
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None
    print(
        f"It is {datetime.fromtimestamp(now_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC; clocks within a day are believed."
    )


@cli.command("export-log-state")
def print_log_state(config: ConfigOption = None, set_: SetOption = []) -> None:  # noqa: B006
    """Print the log ends on the disk of this stopped broker, as input for `headrace-coordinator recover-metadata`."""
    try:
        print(as_text(export_log_state(_read_settings(config, set_))))
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None


cli.command("dump")(dump)


def start(config: Path | None, overrides: list[str]) -> ProcessExitCode:
    """Read the settings, run the broker, and return the exit code."""
    try:
        settings = _read_settings(config, overrides)
        check_advertised_address(settings.listen, settings.advertised_address)
    except HeadraceError as error:
        return report_failure(error)
    keep_large_buffers()
    return run_service(lambda stop: serve(settings, stop), stop_timeout_seconds=settings.stop_timeout_ms / 1000)


def _read_settings(config: Path | None, overrides: list[str]) -> BrokerSettings:
    return load_settings(
        BrokerSettings,
        config_file=config,
        environ=os.environ,
        environ_prefix=ENVIRON_PREFIX,
        overrides=overrides,
    )


def main() -> None:
    """Run the command line."""
    cli()


if __name__ == "__main__":
    main()
