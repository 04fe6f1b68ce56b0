"""The command `headrace-coordinator`: `run` (the default), `recover-metadata` after a restore of etcd,
`bootstrap-admin`, `replace-secret`, and `etcd-auth`.
"""

from __future__ import annotations

# ruff: noqa: E402
import gc

gc.disable()  # Imported objects are never garbage; collections would take an eighth of the import time.

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from headrace.wire.errors import HeadraceError
from headrace_server import lifecycle
from headrace_server.lifecycle import ProcessExitCode, report_failure
from headrace_server.settings import SettingsError, check_advertised_address, load_settings

from headrace_coordinator.app import serve
from headrace_coordinator.bootstrap_admin import run_bootstrap
from headrace_coordinator.etcd_auth import apply_etcd_auth, read_etcd_auth
from headrace_coordinator.recover_metadata import run_recovery
from headrace_coordinator.replace_secret import WAIT_SECONDS, run_replacement
from headrace_coordinator.runtime.first_administrator import ADMINISTRATOR
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings

gc.enable()

cli = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True, help="A headrace coordinator."
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML file with the settings.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Setting as name=value; overrides file and environment; repeatable.")
]


@cli.callback()
def _default(context: typer.Context, config: ConfigOption = None, set_: SetOption = None) -> None:
    if context.invoked_subcommand is None:
        raise typer.Exit(start(config, set_))


@cli.command()
def run(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Run a coordinator. Settings come from --config, HEADRACE_COORDINATOR_<NAME> and --set, the last one wins."""
    raise typer.Exit(start(config, set_))


@cli.command("recover-metadata")
def recover_metadata(
    config: ConfigOption = None,
    set_: SetOption = None,
    log_state: Annotated[
        list[Path] | None,
        typer.Option("--log-state", help="Output of `headrace-broker export-log-state`; one a broker."),
    ] = None,
    lost: Annotated[list[int] | None, typer.Option("--lost", help="Id of a broker whose disk is lost.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write it; otherwise only print the plan.")] = False,
) -> None:
    """Rebuild the metadata after etcd was restored from a backup. All brokers and coordinators must be stopped.

    The backup's in-sync sets are not trusted: the logs in the exported states decide.
    """
    try:
        for line in asyncio.run(run_recovery(_read_settings(config, set_), log_state or [], lost or [], apply=apply)):
            print(line)
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None


@cli.command("bootstrap-admin")
def bootstrap_admin(
    config: ConfigOption = None,
    set_: SetOption = None,
    user: Annotated[str, typer.Option("--user", help="Name of the user.")] = ADMINISTRATOR,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="New file for the API key, readable only for you; otherwise it is printed."),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Also if there is an administrator; the user's other API keys are deleted."),
    ] = False,
) -> None:
    """Create a user with one API key and `admin` on the cluster, directly in etcd, if there is no administrator yet."""
    try:
        for line in asyncio.run(run_bootstrap(_read_settings(config, set_), user, out, recover=recover)):
            print(line)
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None


@cli.command("replace-secret")
def replace_secret(
    config: ConfigOption = None,
    set_: SetOption = None,
    wait_seconds: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds after a step in which every process must see it in etcd."),
    ] = WAIT_SECONDS,
) -> None:
    """Replace the secret by which brokers and coordinators accept each other. They keep running."""
    try:
        asyncio.run(run_replacement(_read_settings(config, set_), wait_seconds, partial(print, flush=True)))
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None


@cli.command("etcd-auth")
def etcd_auth(
    config: ConfigOption = None,
    set_: SetOption = None,
    root_password_file: Annotated[
        Path | None,
        typer.Option(
            "--root-password-file", help="File with the password of etcd's user root; without, a certificate."
        ),
    ] = None,
    certificate_user: Annotated[
        list[str] | None,
        typer.Option("--certificate-user", help="Common name of a certificate of a broker or coordinator; repeatable."),
    ] = None,
    enable: Annotated[bool, typer.Option("--enable", help="Let etcd authenticate all its callers.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only print the commands.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for etcd.")] = 60.0,
) -> None:
    """Set up the role and the users of this cluster in etcd, or print the commands that do so. It may be run again.

    The role reads and writes the keys of the cluster. It goes to etcd_user of the settings, with the password in
    etcd_password_file, and to each --certificate-user.
    """
    try:
        settings = _read_settings(config, set_)
        root_file = "" if root_password_file is None else str(root_password_file)
        auth = read_etcd_auth(settings, certificate_user or (), root_file, enables=enable)
        lines = asyncio.run(apply_etcd_auth(settings, auth, timeout)) if apply else auth.commands()
    except HeadraceError as error:
        raise typer.Exit(report_failure(error)) from None
    for line in lines or ["nothing to change"]:
        print(line)


def start(config: Path | None, overrides: list[str] | None) -> ProcessExitCode:
    """Read the settings, run the coordinator, and return the exit code."""
    try:
        settings = _read_settings(config, overrides)
        check_advertised_address(settings.listen, settings.advertised_address)
    except SettingsError as error:
        return report_failure(error)
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
