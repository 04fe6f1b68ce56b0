"""`python -m headrace_devcluster up|down|status|run`: the local cluster from a shell.

`up` starts `run` in the background and waits for its state file; `down` stops it; `run` owns the cluster in the
foreground. `make` and the `headrace local` command call these; `headrace.testing` calls `run --control`.

The clients and gRPC are imported by the commands that use them: to `up --single` they would add half a second.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from headrace.cli.common.stop_signals import stop_signals
from headrace.wire.errors import HeadraceError

from headrace_devcluster.background import restart_in_background, start_in_background, stop_in_background
from headrace_devcluster.directory import check_removable, remove_data
from headrace_devcluster.process_state import process_state
from headrace_devcluster.single_part import MODULE as SINGLE_MODULE
from headrace_devcluster.single_part import NAME as SINGLE_NAME
from headrace_devcluster.state import describe_state, owner_pid, read_state, state_json, write_state

DEFAULT_DATA_DIR = Path(".headrace")
EXIT_NOT_RUNNING = 3

app = typer.Typer(
    help="Run a headrace cluster on this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[Path, typer.Option(help="Directory of data, logs and the state file.")]
Brokers = Annotated[int, typer.Option(min=1, max=9, help="Number of brokers.")]
Coordinators = Annotated[int, typer.Option(min=1, max=8, help="Number of coordinators.")]
Racks = Annotated[
    str, typer.Option(help="Racks of the brokers in turn, such as a,b,c, or with data centers x/a,x/b,y/a.")
]
AnyPort = Annotated[bool, typer.Option("--any-port", help="Use free ports instead of 7170.., 7181.. and 7190.")]

Tls = Annotated[bool, typer.Option("--tls", help="Use TLS on all connections, with a generated client certificate.")]
Single = Annotated[
    bool,
    typer.Option(
        "--single",
        help="Run everything in one process without etcd, on ports 7170 (gRPC) and 7171 (native protocol).",
    ),
]
Identity = Annotated[
    bool,
    typer.Option("--identity", help="Refuse callers without an identity; an administrator's API key is generated."),
]


@app.command()
def up(
    context: typer.Context,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    single: Single = False,
    brokers: Brokers = 3,
    coordinators: Coordinators = 2,
    racks: Racks = "",
    any_port: AnyPort = False,
    tls: Tls = False,
    identity: Identity = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the data of an earlier cluster first.")] = False,
) -> None:
    """Start a cluster in the background and wait until it is healthy; if one is running, restart its dead processes."""
    check_single(context, single=single)
    pid = owner_pid(data_dir)
    if pid is not None:
        running = read_state(data_dir)
        restarted = [] if running is None else restart_in_background(data_dir, running)
        restarted_note = f"; restarted: {', '.join(restarted)}" if restarted else ""
        print(f"a cluster is already running (process {pid}){restarted_note}; `status` shows it, `down` stops it")
        return
    if fresh:
        check_removable(data_dir)
        remove_data(data_dir)
    if single:
        command = single_command(data_dir, any_port=any_port, tls=tls, identity=identity)
    else:
        command = [sys.executable, "-m", "headrace_devcluster", "run", "--data-dir", str(data_dir)]
        command += ["--brokers", str(brokers), "--coordinators", str(coordinators), "--racks", racks]
        command += ["--any-port"] if any_port else []
        command += ["--tls"] if tls else []
        command += ["--identity"] if identity else []
    state = start_in_background(data_dir, command)
    kind = " in one process" if single else ""
    print(f"the cluster is up{kind}: bootstrap_servers={state.bootstrap_servers}")
    print(f"schema registry: {state.schema_registry}")
    if state.etcd_program:
        print(state.etcd_program)
    settings = dict(state.client_settings)
    if any_port:  # Without the address clients would connect to the default port 7170.
        settings["bootstrap_servers"] = state.bootstrap_servers
    for name, value in settings.items():
        print(f"export HEADRACE_{name.upper()}={shlex.quote(value)}")
    print(f"logs and data are in {data_dir}; `status` shows the processes, `down` stops them")


@app.command()
def down(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete its data.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Stop the cluster in the background."""
    if wipe:
        check_removable(data_dir)
    stopped = stop_in_background(data_dir)
    if wipe:
        remove_data(data_dir)
    if not quiet:
        print("stopped" if stopped else "no cluster is running")


@app.command()
def status(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cluster's processes and the state of its partitions. Exit code 3 if none is running."""
    from rich.console import Console
    from rich.table import Column, Table

    from headrace_devcluster.leadership import ask_for_leadership, sentence

    state = read_state(data_dir)
    if state is None:
        print("{}" if as_json else f"no cluster is running in {data_dir}; `up` starts one")
        raise typer.Exit(EXIT_NOT_RUNNING)
    leadership = ask_for_leadership(state.bootstrap_servers, state.client_settings)
    if as_json:
        print(json.dumps({**asdict(state), "leadership": leadership and asdict(leadership)}))
        return
    table = Table("part", "address", "process", "state", "leads", Column("log", overflow="fold"), box=None)
    for part in state.parts:
        broker_id = 1 if part.name == SINGLE_NAME else int(part.name.partition("broker-")[2] or 0)
        leads = str(leadership.leaders.get(broker_id, 0)) if leadership and broker_id else ""
        table.add_row(part.name, part.address, str(part.pid), process_state(part.pid), leads, part.log_file)
    console = Console()
    console.print(table)
    console.print(sentence(leadership), highlight=False, soft_wrap=True)
    since = f"since {state.started_at}; bootstrap_servers={state.bootstrap_servers}"
    console.print(since, highlight=False, soft_wrap=True)
    console.print(f"schema registry: {state.schema_registry}", highlight=False, soft_wrap=True)
    if state.etcd_program:
        console.print(state.etcd_program, highlight=False, soft_wrap=True)


@app.command()
def run(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory in which to keep data and logs; by default they are deleted at the end."),
    ] = None,
    single: Single = False,
    brokers: Brokers = 3,
    coordinators: Coordinators = 2,
    racks: Racks = "",
    any_port: AnyPort = False,
    tls: Tls = False,
    identity: Identity = False,
    control: Annotated[
        bool,
        typer.Option("--control", help="Print the state as one line of JSON and read commands from standard input."),
    ] = False,
) -> None:
    """Run a cluster in the foreground until Ctrl-C."""
    check_single(context, single=single)
    directory = None if data_dir is None else data_dir.absolute()
    if single and directory is not None and not control:
        command = single_command(directory, any_port=any_port, tls=tls, identity=identity)
        os.execv(command[0], command)
    from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
    from headrace_devcluster.control import serve_control, watch_parts

    spec = LocalClusterSpec(
        brokers=brokers,
        coordinators=coordinators,
        directory=directory,
        fixed_ports=not any_port,
        tls=tls,
        identity=identity,
        single=single,
        racks=tuple(filter(None, racks.split(","))),
    )
    with LocalCluster(spec) as cluster:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        state = describe_state(cluster, pid=os.getpid(), started_at=started_at)
        if directory is not None:
            write_state(directory, state)
        if control:
            print(state_json(state), flush=True)
            serve_control(cluster, sys.stdin, sys.stdout)
        else:
            print(f"the cluster is up: bootstrap_servers={state.bootstrap_servers}; Ctrl-C stops it", flush=True)
            if state.etcd_program:
                print(state.etcd_program, flush=True)

            def write_again() -> None:
                if directory is not None:
                    write_state(directory, describe_state(cluster, pid=os.getpid(), started_at=started_at))

            watch_parts(cluster, write_again)


def check_single(context: typer.Context, *, single: bool) -> None:
    """Check that no option is given that a cluster in one process does not have.

    Raises:
        typer.BadParameter: If one is.
    """
    sources = {name: context.get_parameter_source(name) for name in ("brokers", "coordinators", "racks")}
    given = [f"--{name}" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if single and given:
        raise typer.BadParameter(f"a cluster in one process has no {', '.join(given)}; leave it out or omit --single")


def single_command(directory: Path, *, any_port: bool, tls: bool, identity: bool) -> list[str]:
    """Return the command line of a cluster in one process that owns its directory."""
    command = [sys.executable, "-m", SINGLE_MODULE, "--directory", str(directory)]
    given = {"--any-port": any_port, "--tls": tls, "--identity": identity}
    return command + [option for option, is_given in given.items() if is_given]


def main() -> None:
    """Run the command; print a typed error in one line (with the part's log if any) and exit with code 1."""
    try:
        with stop_signals(signal.SIGTERM, signal.SIGHUP):
            app(prog_name=os.environ.get("HEADRACE_LOCAL_PROGRAM", "python -m headrace_devcluster"))
    except HeadraceError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
