"""The command `python -m headrace_devcluster.single`: runs a cluster in one process until SIGTERM or SIGINT.

`--set name=value` gives a setting of the broker, of the coordinator, or of both if both have it, and `metastore_file`.
With `--directory` the process owns the directory of a local cluster, as `headrace local` finds it: its lock, its state
file, and the settings of `single_part`.
"""

from __future__ import annotations

# ruff: noqa: E402
import gc
import os

gc.disable()  # Imported objects are never garbage; collections would take an eighth of the import time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Nothing multiplies matrices; numpy would start its threads.

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from headrace.wire.allocator import keep_large_buffers
from headrace.wire.errors import HeadraceError
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.identity.api_keys import make_api_key
from headrace_server.lifecycle import ProcessExitCode, StopRequest, report_failure, run
from headrace_server.settings import SettingsError, load_settings

from headrace_devcluster.certificates import ClusterCertificates
from headrace_devcluster.directory import ClusterDirectory
from headrace_devcluster.secret_files import keep_secret
from headrace_devcluster.service import check_port_is_free
from headrace_devcluster.single.app import SingleSettings, serve
from headrace_devcluster.single_part import (
    FIXED_PORTS,
    NAME,
    PORT,
    check_kind,
    local,
    single_settings,
    state_of,
)
from headrace_devcluster.state import STATE_FILE, write_state

gc.freeze()  # Without it the first collection would visit them: a tenth of the time until the cluster serves.
gc.enable()


def read_settings(given: Mapping[str, str]) -> SingleSettings:
    """Return the settings of the process.

    Raises:
        SettingsError: As `load_settings`.
    """
    left = dict(given)
    metastore_file = left.pop("metastore_file", "")
    if not metastore_file:
        raise SettingsError("metastore_file is not set", action="Name it with --set metastore_file=PATH.")
    coordinator_names = {each.name for each in fields(CoordinatorSettings)}
    broker_names = {each.name for each in fields(BrokerSettings)}
    # What only one of them knows is the other's mistake as little as its own: the broker reports unknown names.
    coordinator = {name: value for name, value in left.items() if name in coordinator_names}
    broker = {name: value for name, value in left.items() if name in broker_names or name not in coordinator_names}
    return SingleSettings(
        broker=load_settings(BrokerSettings, overrides=broker),
        coordinator=load_settings(CoordinatorSettings, overrides=coordinator),
        metastore_file=Path(metastore_file),
    )


@dataclass(frozen=True, slots=True)
class DirectoryOwner:
    """A process that owns the directory of its cluster."""

    directory: Path
    fixed_ports: bool
    tls: bool
    identity: bool
    client_settings: dict[str, str] = field(default_factory=dict)
    """Client settings in addition to `bootstrap_servers`, once it is prepared."""

    def prepare(self) -> dict[str, object]:
        """Return the settings, once the directory and the ports are checked.

        Raises:
            OtherKindError, PortInUseError: If they are not as they must be.
        """
        check_kind(self.directory, is_single=True)
        if self.fixed_ports:
            for port in FIXED_PORTS:
                check_port_is_free(port, NAME)
        (self.directory / STATE_FILE).unlink(missing_ok=True)
        tls: dict[str, object] = {}
        if self.tls:
            certificates = ClusterCertificates(self.directory / "tls")
            tls = certificates.single_settings(NAME)
            self.client_settings.update(certificates.client_settings())
        api_key_file = self.directory / "admin.key" if self.identity else None
        if api_key_file is not None:
            keep_secret(api_key_file, make_api_key)
            self.client_settings["api_key_file"] = str(api_key_file)
        return {
            "listen": local(PORT if self.fixed_ports else 0),
            **single_settings(self.directory, fixed_ports=self.fixed_ports, api_key_file=api_key_file),
            **tls,
        }

    async def serve(self, settings: SingleSettings, stop: StopRequest) -> None:
        """Run the cluster, and write its state file once it serves."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        ready: asyncio.Future[Mapping[str, object]] = asyncio.get_running_loop().create_future()

        async def tell() -> None:
            addresses, settings = await ready, self.client_settings
            state = state_of(self.directory, addresses, started_at=started_at, client_settings=settings)
            write_state(self.directory, state)
            print(f"the cluster is up: bootstrap_servers={state.bootstrap_servers}; Ctrl-C stops it", flush=True)

        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(tell())
            await serve(settings, stop, ready)
            telling.cancel()


def main(arguments: Sequence[str] | None = None) -> ProcessExitCode:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m headrace_devcluster.single", description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--any-port", action="store_true")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--identity", action="store_true")
    given = parser.parse_args(arguments)
    try:
        overrides = dict(_split(item) for item in given.set)
        if given.directory is None:
            settings = read_settings(overrides)
            return _run(settings, lambda stop: serve(settings, stop))
        owner = DirectoryOwner(given.directory.absolute(), not given.any_port, given.tls, given.identity)
        owned = ClusterDirectory(owner.directory)
        owned.take()
        try:
            made = {name: str(value) for name, value in owner.prepare().items()}
            settings = read_settings({**made, **overrides})
            return _run(settings, lambda stop: owner.serve(settings, stop))
        finally:
            owned.release()
    except HeadraceError as error:
        return report_failure(error)


def _split(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise SettingsError(f"{item!r} is not of the form name=value", action="Write --set name=value.")
    return name.strip(), value


def _run(settings: SingleSettings, serve_all: Callable[[StopRequest], Awaitable[None]]) -> ProcessExitCode:
    keep_large_buffers()
    return run(serve_all, stop_timeout_seconds=settings.broker.stop_timeout_ms / 1000)


if __name__ == "__main__":
    sys.exit(main())
