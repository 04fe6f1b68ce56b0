"""The peers' servers: paths, start and stop.

Each runs on loopback ports chosen by the kernel, keeps its data in a temporary directory, acknowledges from the page
cache as headrace with `durability=async`, and stops with this process, however that ends. The page docs/performance.md
gives the reasons for the settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.children import guarded, search_path

PEERS = Path(__file__).parents[2] / ".peers"
"""Directory in which `install.sh` installs software that is not in Debian."""
INSTALL = "bench/peers/install.sh"
DIRECTORY = "headrace-peer-"
"""Prefix of a server's directory; the process id of its benchmark follows."""
START_SECONDS = 300.0
KAFKA_CLUSTER_ID = "aGVhZHJhY2UtYmVuY2gtMQ"
FLUSS = PEERS / "fluss"
FLUSS_ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"
CASSANDRA_JARS = PEERS / "cassandra"
CASSANDRA_DAEMON = "org.apache.cassandra.service.CassandraDaemon"
CASSANDRA_OPENS = (
    *("base/java.io", "base/java.lang", "base/java.lang.module", "base/java.lang.reflect", "base/java.net"),
    *("base/java.nio", "base/java.util", "base/java.util.concurrent", "base/java.util.concurrent.atomic"),
    *("base/jdk.internal.loader", "base/jdk.internal.math", "base/jdk.internal.module", "base/jdk.internal.ref"),
    *("base/jdk.internal.reflect", "base/jdk.internal.util.jar", "base/sun.nio.ch"),
    *("management.rmi/javax.management.remote.rmi", "management/com.sun.jmx.remote.security"),
    *("rmi/sun.rmi.registry", "rmi/sun.rmi.server", "sql/java.sql"),
)
"""Packages of Java that its own start script opens to it."""
NATS_SERVER = PEERS / "nats-server"
RABBITMQ = Path("/usr/lib/rabbitmq/lib")
ACTIVEMQ = Path("/usr/share/activemq/lib")


@dataclass(frozen=True, slots=True)
class Running:
    """Server that accepts clients."""

    ports: Mapping[str, int]
    """Loopback ports by protocol."""
    pids: Sequence[int]
    directory: Path
    """Directory of its data."""


@dataclass(frozen=True, slots=True)
class Server:
    """Peer system."""

    name: str
    missing: Callable[[], str]
    """Function that returns why the server cannot start here; an empty string if it can."""
    start: Callable[[Path, ExitStack], Running]
    """Function that starts it in an empty directory; the stack stops it."""

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Start the server, and stop it at exit."""
        with ExitStack() as stack:
            remove_leftovers()
            prefix = f"{DIRECTORY}{os.getpid()}-{self.name}-"
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
            yield self.start(Path(directory), stack)


def remove_leftovers() -> None:
    """Remove directories left behind by killed benchmarks."""
    for path in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}*"):
        owner = path.name.removeprefix(DIRECTORY).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def needs(program: str | Path, part: str) -> Callable[[], str]:
    """Return a check that names the package to install if a program or file is missing."""

    def missing() -> str:
        found = program.exists() if isinstance(program, Path) else shutil.which(program, path=search_path())
        return "" if found else f"{program} is not installed: {INSTALL} {part}"

    return missing


def needs_all(*checks: Callable[[], str]) -> Callable[[], str]:
    """Return a check that returns the first reason of several checks."""
    return lambda: next(filter(None, (check() for check in checks)), "")


def free_ports(*names: str) -> dict[str, int]:
    """Return distinct ports that were free when checked."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: taken.getsockname()[1] for name, taken in zip(names, sockets, strict=True)}


def spawn(
    command: Sequence[str | Path], directory: Path, stack: ExitStack, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that ends with the stack and with this process; its output goes to `log` in the directory."""
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            guarded(command),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children; its data is temporary."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until the port accepts connections.

    Raises:
        RuntimeError: If the program ends, or does not listen in time; the message has the end of its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            said = (directory / "log").read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{process.args!r} does not listen on {port}: {said}")
        time.sleep(0.05)


def kafka(line: int, brokers: int = 1, partitions: int = 1) -> Server:
    """Return Kafka of a major version, with that number of brokers, and of partitions of a new topic."""
    jars = PEERS / f"kafka-{line}"

    def start(directory: Path, stack: ExitStack) -> Running:
        """Start nodes that are broker and controller (KRaft), without flushes, as Kafka's documentation recommends."""
        ports = [free_ports("kafka", "controller") for _ in range(brokers)]
        voters = ",".join(f"{node}@127.0.0.1:{port['controller']}" for node, port in enumerate(ports, 1))
        common = {
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "num.partitions": partitions,
            "default.replication.factor": brokers,
            "min.insync.replicas": (brokers + 1) // 2,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.delete.delay.ms": 0,
            "socket.send.buffer.bytes": -1,
            "socket.receive.buffer.bytes": -1,
        }
        heap = "1g" if brokers == 1 else "384m"
        processes = []
        for node, port in enumerate(ports, 1):
            home = directory / str(node)
            home.mkdir()
            settings = {
                **common,
                "node.id": node,
                "listeners": f"PLAINTEXT://127.0.0.1:{port['kafka']},CONTROLLER://127.0.0.1:{port['controller']}",
                "log.dirs": home / "data",
            }
            file = home / "server.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            with (home / "log").open("wb") as log:
                command = [*java(jars, "kafka.tools.StorageTool"), "format", "-t", KAFKA_CLUSTER_ID, "-c", str(file)]
                subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, timeout=START_SECONDS)
            processes.append(spawn([*java(jars, "kafka.Kafka", f"-Xms{heap}", f"-Xmx{heap}"), file], home, stack))
        for node, (port, process) in enumerate(zip(ports, processes, strict=True), 1):
            wait_for_port(port["kafka"], process, directory / str(node))
        return Running(ports[0], [process.pid for process in processes], directory)

    name = f"kafka-{line}" + (f"-{brokers}-brokers" if brokers > 1 else "")
    return Server(name, needs_all(needs("java", "debian"), needs(jars, "kafka")), start)


def java(jars: Path, main_class: str, *options: str) -> list[str]:
    """Return the command for a class of Kafka's jars that logs only errors."""
    return ["java", *options, "-cp", f"{jars}/*", main_class]


def start_rabbitmq(directory: Path, stack: ExitStack) -> Running:
    """Start one node with the stream plugin and its own epmd."""
    ports = free_ports("amqp", "stream", "distribution", "epmd")
    (directory / "plugins").write_text("[rabbitmq_stream].\n")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{ports['amqp']}\n"
        f"stream.listeners.tcp.1 = 127.0.0.1:{ports['stream']}\n"
        "stream.advertised_host = 127.0.0.1\n"
        f"stream.advertised_port = {ports['stream']}\n"
        "loopback_users = none\n"
        "disk_free_limit.absolute = 1GB\n"
    )
    environment = {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(ports["epmd"]),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "logs"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        # Exec the server instead of staying its parent.
        "RUNNING_UNDER_SYSTEMD": "1",
    }
    names = spawn(["epmd", "-port", str(ports["epmd"])], directory, stack, environment)
    wait_for_port(ports["epmd"], names, directory)
    server = next(RABBITMQ.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    process = spawn([server], directory, stack, environment)
    for name in ("amqp", "stream"):
        wait_for_port(ports[name], process, directory)
    return Running(ports, [process.pid], directory)


def start_nats(directory: Path, stack: ExitStack) -> Running:
    """Start JetStream with file storage, synced every two minutes, its default."""
    ports = free_ports("nats")
    (directory / "nats.conf").write_text(
        f'listen: "127.0.0.1:{ports["nats"]}"\nmax_payload: 8MB\nmax_pending: 256MB\n'
        f'jetstream {{ store_dir: "{directory / "data"}", max_file: 100GB, max_mem: 1GB }}\n'
    )
    process = spawn([NATS_SERVER, "-c", directory / "nats.conf"], directory, stack)
    wait_for_port(ports["nats"], process, directory)
    return Running(ports, [process.pid], directory)


def start_redis(directory: Path, stack: ExitStack) -> Running:
    """Start with an append-only file, written at once and synced by the kernel, without snapshots."""
    ports = free_ports("redis")
    options = {
        "port": ports["redis"],
        "bind": "127.0.0.1",
        "dir": directory,
        "appendonly": "yes",
        "appendfsync": "no",
        "auto-aof-rewrite-percentage": 0,
        "save": "",
    }
    command: list[str | Path] = ["redis-server"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    process = spawn(command, directory, stack)
    wait_for_port(ports["redis"], process, directory)
    return Running(ports, [process.pid], directory)


def start_activemq(directory: Path, stack: ExitStack) -> Running:
    """Start with persistent messages in KahaDB, whose journal is not synced per message, and STOMP."""
    ports = free_ports("stomp")
    uri = (
        f"broker:(stomp://127.0.0.1:{ports['stomp']})?persistent=true&useJmx=false"
        f"&dataDirectory={directory / 'data'}&brokerName=bench"
    )
    classes = f"{ACTIVEMQ}/*:{ACTIVEMQ}/optional/*:/usr/share/java/log4j-api.jar:/usr/share/java/log4j-core.jar"
    command = ["java", "-Xms1g", "-Xmx1g", "-cp", classes, "org.apache.activemq.console.Main", "start", uri]
    home = {"ACTIVEMQ_HOME": str(directory), "ACTIVEMQ_BASE": str(directory)}
    options = [f"-Dactivemq.home={directory}", f"-Dactivemq.base={directory}"]
    process = spawn([command[0], *options, *command[1:]], directory, stack, home)
    wait_for_port(ports["stomp"], process, directory)
    return Running(ports, [process.pid], directory)


def start_fluss(directory: Path, stack: ExitStack) -> Running:
    """Start a ZooKeeper, a coordinator and one tablet server, with the default settings otherwise."""
    ports = free_ports("zookeeper", "coordinator", "fluss")
    settings = {
        "zookeeper.address": f"127.0.0.1:{ports['zookeeper']}",
        "data.dir": directory / "data",
        "remote.data.dir": directory / "remote",
        "tablet-server.id": 0,
        "default.bucket.number": 1,
        "default.replication.factor": 1,
    }
    programs: dict[str, tuple[list[str], list[str | Path]]] = {
        "zookeeper": (
            ["-Xmx128m", "-Dzookeeper.admin.enableServer=false"],
            [FLUSS_ZOOKEEPER, str(ports["zookeeper"]), directory / "zookeeper-data"],
        ),
        "coordinator": (["-Xmx256m"], ["org.apache.fluss.server.coordinator.CoordinatorServer", "--configDir", "."]),
        "fluss": (
            ["-Xms1g", "-Xmx1g", "--add-opens=java.base/java.nio=ALL-UNNAMED"],
            ["org.apache.fluss.server.tablet.TabletServer", "--configDir", "."],
        ),
    }
    processes = []
    for name, (options, program) in programs.items():
        home = directory / name
        home.mkdir()
        mine = {**settings, "bind.listeners": f"FLUSS://127.0.0.1:{ports[name]}"}
        (home / "server.yaml").write_text("".join(f"{key}: {value}\n" for key, value in mine.items()))
        processes.append(spawn(["java", *options, "-cp", f"{FLUSS}/*", *program], home, stack))
        wait_for_port(ports[name], processes[-1], home)
    return Running(ports, [process.pid for process in processes], directory)


def start_cassandra(directory: Path, stack: ExitStack) -> Running:
    """Start one node whose commit log is synced every ten seconds, its default."""
    ports = free_ports("cassandra", "storage")
    folders = ("commitlog", "hints", "saved_caches", "cdc_raw")
    settings = {
        "cluster_name": "bench",
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "data_file_directories": f"[{directory / 'data'}]",
        **{f"{name}_directory": directory / name for name in folders},
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "listen_address": "127.0.0.1",
        "rpc_address": "127.0.0.1",
        "native_transport_port": ports["cassandra"],
        "storage_port": ports["storage"],
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": "[{class_name: org.apache.cassandra.locator.SimpleSeedProvider, "
        f"parameters: [{{seeds: '127.0.0.1:{ports['storage']}'}}]}}]",
    }
    (directory / "cassandra.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (directory / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
    properties = {
        "cassandra.config": f"file://{directory}/cassandra.yaml",
        "cassandra.storagedir": directory,
        "cassandra-foreground": "yes",
        "cassandra.skip_wait_for_gossip_to_settle": 0,
        "cassandra.ring_delay_ms": 0,
        "logback.configurationFile": directory / "logback.xml",
        "jdk.attach.allowAttachSelf": "true",
    }
    opened = [
        option
        for name in CASSANDRA_OPENS
        for kind in ("opens", "exports")
        for option in (f"--add-{kind}", f"java.{name}=ALL-UNNAMED")
    ]
    options = ["-Xms1g", "-Xmx1g", *opened, *(f"-D{key}={value}" for key, value in properties.items())]
    process = spawn(["java", *options, "-cp", f"{CASSANDRA_JARS}/*", CASSANDRA_DAEMON], directory, stack)
    wait_for_port(ports["cassandra"], process, directory)
    return Running(ports, [process.pid], directory)


KAFKA_3, KAFKA_4 = kafka(3), kafka(4)
KAFKA_REPLICATED = kafka(4, brokers=3)
RABBIT = Server("rabbitmq", needs_all(needs(RABBITMQ, "debian"), needs("epmd", "debian")), start_rabbitmq)
NATS = Server("nats", needs(NATS_SERVER, "nats"), start_nats)
FLUSS_SERVER = Server("fluss", needs_all(needs("java", "debian"), needs(FLUSS, "fluss")), start_fluss)
CASSANDRA = Server("cassandra", needs_all(needs("java", "debian"), needs(CASSANDRA_JARS, "cassandra")), start_cassandra)
REDIS = Server("redis", needs("redis-server", "debian"), start_redis)
ACTIVE = Server("activemq", needs_all(needs("java", "debian"), needs(ACTIVEMQ, "debian")), start_activemq)
