"""docker-compose.yml as it is on a real engine: healthy, written to and read, killed, taken down and up again."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time

import headrace
import pytest

from tests.containers.conftest import Figure
from tests.containers.engine import PROJECT, Engine
from tests.containers.images import HEADRACE
from tests.containers.records import clients, in_sync, until, values

SERVERS = "localhost:7170,localhost:7171"
BROKERS = ("broker-1", "broker-2", "broker-3")
RUNNING = ("etcd", "coordinator-1", "coordinator-2", *BROKERS)
SECONDS = 60.0


def create(topic: str) -> None:
    """A topic of three partitions on all three brokers, of which two must have a record."""
    with headrace.Admin(**clients(SERVERS)) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=3)


def sent_by_kernel(cluster: Engine) -> int:
    """Bytes that all brokers have sent over the native protocol by `sendfile`."""
    key = cluster.compose("exec", "-T", "coordinator-1", "cat", "/etc/headrace-monitor/api-key").strip()
    program = (
        "import urllib.request as u;"
        f"page = u.Request('http://127.0.0.1:9464/metrics', headers={{'Authorization': 'Bearer {key}'}});"
        "lines = u.urlopen(page).read().decode().splitlines();"
        "print(*(l.split()[1] for l in lines if l.startswith('headrace_broker_native_sent_bytes_total ')))"
    )
    return sum(int(float(cluster.compose("exec", "-T", name, "python", "-c", program))) for name in BROKERS)


def test_the_quickstart_is_healthy(cluster: Engine) -> None:
    """All are healthy, none of them as root, on a root file system that none can write to."""
    for name in RUNNING:
        found = cluster.container(name)
        assert name == "etcd" or found["State"]["Health"]["Status"] == "healthy", name
        assert found["RestartCount"] == 0, name
        assert found["Config"]["User"] == "10001:10001", name
        assert found["HostConfig"]["ReadonlyRootfs"] is True, name
        with open(f"/proc/{found['State']['Pid']}/status", encoding="ascii") as status:
            lines = dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)
        assert lines["Uid"].split() == ["10001"] * 4, name
        assert (int(lines["CapEff"], 16), lines["NoNewPrivs"]) == (0, "1"), name
    for name in ("secrets", "etcd-auth"):
        assert cluster.container(name)["State"]["ExitCode"] == 0


def test_strangers_are_refused(cluster: Engine) -> None:
    """Without the key that the first start made, by the cluster and by etcd."""
    with headrace.Admin(bootstrap_servers=SERVERS) as admin, pytest.raises(headrace.UnauthenticatedError):
        admin.create_topic("of-a-stranger")
    program = (
        "import headrace_server.metastore.etcd as e, asyncio\n"
        "async def main():\n await e.EtcdMetastore(['etcd:2379']).get('/headrace/headrace/meta')\n"
        "asyncio.run(main())"
    )
    command = ("exec", "-T", "broker-1", "sh", "-c", f'python -c "{program}" 2>&1 || true')
    assert "this process has no user there" in cluster.compose(*command)


def test_what_a_client_here_writes_it_reads(cluster: Engine, figure: Figure) -> None:
    """By the addresses that clients are told, which are published on this machine's loopback alone."""
    create("written-here")
    begun = time.monotonic()
    with headrace.Producer(**clients(SERVERS), acks="all") as producer:
        for number in range(20_000):
            producer.send("written-here", b"%d" % number, key=b"%d" % number)
    figure("20,000 records with acks=all from outside", f"{time.monotonic() - begun:.2f} s")
    assert sorted(map(int, values(SERVERS, "written-here"))) == list(range(20_000))


def test_commands_in_a_container_reach_the_cluster(cluster: Engine) -> None:
    """The commands in the head of the file: health, and the command line next to a service."""
    assert cluster.compose("exec", "-T", "coordinator-1", "headrace-container", "health")
    assert cluster.compose("exec", "-T", "broker-1", "headrace-container", "health", "liveness")


def test_the_demo_works(cluster: Engine, figure: Figure) -> None:
    """The load of profile `demo` writes and reads all that it wrote, as a container."""
    cluster.compose("up", "-d", "--wait", "demo", profile="demo")

    def counted() -> list[tuple[int, int]]:
        lines = cluster.compose("logs", "--no-log-prefix", "demo", profile="demo").splitlines()
        found = [re.fullmatch(r"sent ([\d,]+); read ([\d,]+)", line) for line in lines]
        return [(int(m[1].replace(",", "")), int(m[2].replace(",", ""))) for m in found if m]

    until(lambda: len(counted()) >= 2, "two lines of the demo")
    (sent_first, read_first), (sent, read) = counted()[-2:]
    figure("the demo's second line", f"sent {sent:,}, read {read:,}")
    assert sent > sent_first > 0
    assert read > read_first > 0
    assert read > 0.8 * sent
    cluster.compose("stop", "demo", profile="demo")
    assert cluster.container("demo")["State"]["ExitCode"] == 0


def test_a_client_in_another_container_reaches_the_cluster(cluster: Engine) -> None:
    """One that shares the gateway's network finds brokers and coordinators by the addresses that it is told."""
    cluster.compose("up", "-d", "--wait", "gateway")
    native = ("--env", "HEADRACE_TRANSPORT=native")  # Not over gRPC where the gateway passed no native port on.
    volume, file = f"{PROJECT}_admin:/etc/headrace-admin:ro", "/etc/headrace-admin/api-key"
    key = ("--volume", volume, "--env", f"HEADRACE_API_KEY_FILE={file}")
    client = ("run", "--rm", *native, *key, f"--network=container:{PROJECT}-gateway-1", HEADRACE)
    create("from-a-container")
    assert "healthy" in cluster.docker(*client, "cluster", "health", "--exit-when-healthy", "--wait-timeout", "30")
    for partition in range(3):
        cluster.docker(*client, "produce", "from-a-container", "--partition", str(partition), "/etc/hostname")
    assert len(cluster.docker(*client, "consume", "from-a-container", "--exit-at-end", "-o", "start").split()) == 3
    assert len(values(SERVERS, "from-a-container")) == 3


def test_fetches_come_from_the_page_cache(cluster: Engine) -> None:
    """By the native addresses that clients are told: the kernel sends more than the values."""
    create("from-the-page-cache")
    with headrace.Producer(**clients(SERVERS), acks="all") as producer:
        for number in range(2_000):
            producer.send("from-the-page-cache", bytes(1_000), key=b"%d" % number)
    before = sent_by_kernel(cluster)
    assert len(values(SERVERS, "from-the-page-cache")) == 2_000
    assert sent_by_kernel(cluster) - before > 2_000_000


def test_a_killed_broker_loses_nothing(cluster: Engine, figure: Figure) -> None:
    """SIGKILL under load with acks=all: each record acknowledged is there once, and it comes back by itself."""
    topic, service = "killed", BROKERS[0]
    create(topic)
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def write() -> None:
        with headrace.Producer(**clients(SERVERS), acks="all") as producer:
            for begin in itertools.count(step=20):
                if stop.wait(0.01):
                    return
                sent = [b"%d" % number for number in range(begin, begin + 20)]
                for value, future in [(value, producer.send(topic, value, key=value)) for value in sent]:
                    future.result(timeout=SECONDS)
                    acknowledged.append(value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: len(acknowledged) > 500, "records before")
        before = cluster.container(service)["State"]["Pid"]
        os.kill(before, signal.SIGKILL)
        killed = len(acknowledged)
        gap = until(lambda: len(acknowledged) > killed + 500, "records after")
        figure("500 records after SIGKILL of a broker took", f"{gap:.1f} s")

        def is_back() -> bool:
            state = cluster.container(service)["State"]
            return bool(state["Pid"] not in (0, before) and state["Health"]["Status"] == "healthy")

        figure(f"{service} is healthy again after", f"{until(is_back, 'healthy again'):.1f} s")
        figure("all replicas in sync after", f"{until(lambda: in_sync(SERVERS, topic), 'in sync'):.1f} s more")
    finally:
        stop.set()
        writer.join(SECONDS)
    assert cluster.container(service)["RestartCount"] == 1
    assert sorted(values(SERVERS, topic)) == sorted(acknowledged)


def test_volumes_survive_down_and_up(cluster: Engine, figure: Figure) -> None:
    """After `down` and `up` with other containers: records, groups and the cluster's id are what they were."""
    topic, group = "kept", "keepers"
    create(topic)
    with headrace.Producer(**clients(SERVERS), acks="all") as producer:
        for number in range(5_000):
            producer.send(topic, b"%d" % number, key=b"%d" % number)
    settings = {"group_id": group, "auto_offset_reset": "earliest"}
    with headrace.Consumer(topic, **clients(SERVERS), **settings) as consumer:
        read = 0
        while read < 5_000:
            read += len(consumer.poll(timeout=5.0))
        consumer.commit()
    with headrace.Admin(**clients(SERVERS)) as admin:
        identity, offsets = admin.describe_cluster().cluster_id, admin.group_offsets(group)
    containers = {name: cluster.container(name)["Id"] for name in RUNNING}
    cluster.compose("stop")
    codes = {name: cluster.container(name)["State"]["ExitCode"] for name in RUNNING}
    assert codes == dict.fromkeys(RUNNING, 0)
    cluster.compose("down")
    begun = time.monotonic()
    cluster.compose("up", "-d", "--wait")
    figure("up -d --wait with data", f"{time.monotonic() - begun:.1f} s")
    assert not {name for name, each in containers.items() if cluster.container(name)["Id"] == each}
    with headrace.Admin(**clients(SERVERS)) as admin:
        assert admin.describe_cluster().cluster_id == identity
        assert admin.group_offsets(group) == offsets
    assert sorted(map(int, values(SERVERS, topic))) == list(range(5_000))
