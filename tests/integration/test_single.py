"""A cluster in one process: every path of records and metadata, its end and return, and the commands that run it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import headrace
import psutil
import pytest
from headrace import TopicPartition, testing
from headrace.v1 import cluster_pb2, cluster_pb2_grpc
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.cluster_health import describe_cluster
from headrace_devcluster.errors import OtherKindError, PartStartError
from headrace_devcluster.process_state import process_state

from tests.children import running
from tests.integration.replicated import until

COMMAND = [sys.executable, "-m", "headrace_devcluster"]
METRICS = {"metrics_listen": "127.0.0.1:0"}
SECONDS = 120


@pytest.fixture(scope="module")
def single():
    with LocalCluster(LocalClusterSpec(single=True, broker_settings=METRICS)) as cluster:
        yield cluster


def create(cluster, topic, partitions=1, **config):
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=partitions, config=config)


def produce(cluster, topic, values, **settings):
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, **settings) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush(timeout=SECONDS)


def read(cluster, topic, **settings):
    with headrace.Reader(topic, bootstrap_servers=cluster.bootstrap_servers, **settings) as reader:
        return [bytes(record.value) for record in reader.read(timeout=SECONDS)]


@pytest.mark.parametrize("transport", ["native", "grpc"])
def test_records_go_in_and_out(single, transport):
    """Over both protocols, several batches of several producers."""
    topic = f"records-{transport}"
    create(single, topic)
    values = [b"%d" % number for number in range(5_000)]
    produce(single, topic, values, transport=transport)
    assert read(single, topic, transport=transport) == values


def test_groups_share_partitions_and_keep_their_offsets(single):
    """Two members own a partition each; a later member continues behind what they committed."""
    create(single, "grouped", partitions=2)
    with headrace.Producer(bootstrap_servers=single.bootstrap_servers) as producer:
        for number in range(100):
            producer.send("grouped", b"%d" % number, partition=number % 2)
        producer.flush(timeout=SECONDS)
    settings = {"bootstrap_servers": single.bootstrap_servers, "group_id": "g", "auto_offset_reset": "earliest"}
    got: list[bytes] = []
    with headrace.Consumer("grouped", **settings) as one, headrace.Consumer("grouped", **settings) as two:

        def owned():
            for consumer in (one, two):
                got.extend(bytes(record.value) for record in consumer.poll(timeout=0.1))
            return len(one.assignment()) == len(two.assignment()) == 1

        until(owned, "a partition each", SECONDS)
        until(lambda: owned() and len(set(got)) == 100, "all records", SECONDS)
        one.commit()
        two.commit()
    produce(single, "grouped", [b"later"])
    with headrace.Consumer("grouped", **settings) as third:
        records = until(lambda: third.poll(timeout=1), "the later record", SECONDS)
        assert [bytes(record.value) for record in records] == [b"later"]


def test_tables_and_schemas(single):
    """A table is put, read and changed on a condition; the schema registry answers."""
    create(single, "users", cleanup_policy="compact", table="yes")
    with headrace.Table("users", bootstrap_servers=single.bootstrap_servers) as users:
        version = users.put("u1", {"name": "Ada"})
        assert dict(users.get("u1")) == {"name": "Ada"}
        with pytest.raises(headrace.VersionConflictError):
            users.put("u1", {"name": "Eve"}, if_version=version + 1)
    with urllib.request.urlopen(f"{single.schema_registry_urls[0]}/subjects", timeout=20) as answer:
        assert json.loads(answer.read()) == []


def test_it_is_one_process_with_one_address(single):
    """Broker and coordinator have one address and one process, without children, which listens once for gRPC, once for
    the native protocol, and for HTTP: the schema registry and metrics."""
    described = describe_cluster(single.bootstrap_servers)
    assert [broker.address for broker in described.brokers] == [single.bootstrap_servers]
    (part,) = single.parts
    process = psutil.Process(part.pid)
    assert process.children() == []
    listening = {each.laddr.port for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
    addresses = (part.address, part.metrics_address, part.schema_registry_address)
    known = {int(address.rpartition(":")[2]) for address in addresses}
    assert known < listening
    assert len(listening) == len(known) + 1


def test_its_health_and_metrics_are_those_of_both(single):
    """One endpoint has the series of both services, with the process's own for each, and one answer to each probe."""
    (part,) = single.parts
    samples = part.metrics()
    for service in ("broker", "coordinator"):
        assert samples[f'headrace_{service}_health{{name="readiness"}}'] == 1
        assert samples[f"headrace_{service}_registered"] == 1
        lag = f"headrace_{service}_loop_lag_seconds_count"
        until(lambda lag=lag: part.metrics()[lag] > 0, "a first sample of the lag")
    assert samples["headrace_coordinator_is_controller"] == 1
    for probe in ("startup", "liveness", "readiness"):
        assert part.page(f"/health/{probe}")
    create(single, "detailed")
    until(lambda: any("detailed" in name for name in part.metrics("/metrics/detail")), "the partition's series")


def test_its_server_describes_all_its_services(single):
    """grpcurl finds what brokers serve and what coordinators serve by reflection at the one address."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with grpc.insecure_channel(single.bootstrap_servers) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=30)
    names = [service.name for service in answer.list_services_response.service]
    assert len(names) == len(set(names))
    wanted = ("Broker", "Table", "Cluster", "Group", "Auth", "Session", "Process")
    assert {f"headrace.v1.{name}Service" for name in wanted} < set(names)


def test_a_clean_stop_keeps_everything(tmp_path):
    """SIGTERM ends it cleanly; topics, records and offsets are there when it starts again."""
    spec = LocalClusterSpec(single=True, directory=tmp_path)
    values = [b"%d" % number for number in range(100)]
    with LocalCluster(spec) as cluster:
        create(cluster, "kept")
        produce(cluster, "kept", values)
        (part,) = cluster.parts
    log = part.log_file.read_text()
    assert "clean=True" in log
    assert "controller_steps_down" in log
    assert "stop_forced" not in log
    with LocalCluster(spec) as cluster:
        assert read(cluster, "kept") == values
        produce(cluster, "kept", [b"new"])
        assert read(cluster, "kept") == [*values, b"new"]
    with pytest.raises(OtherKindError, match="Start it with --single"):
        LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, directory=tmp_path)).start()


def test_a_kill_loses_nothing_that_was_acknowledged(own_cluster):
    """Through kill -9 and a restart, again and again, a producer continues by itself; every acknowledged record is read
    once and in order, and a member of a group keeps its place without a new epoch of its group."""
    cluster = own_cluster(single=True)
    (part,) = cluster.parts
    create(cluster, "kept")
    acknowledged, ends = [], threading.Event()

    def send():
        with headrace.Producer(
            bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=SECONDS * 1000
        ) as producer:
            number = 0
            while not ends.is_set():
                futures = [producer.send("kept", b"%d" % (number + n)) for n in range(50)]
                offsets = [future.result(SECONDS).offset for future in futures]
                acknowledged.extend((offset, number + n) for n, offset in enumerate(offsets))
                number += 50

    settings = {"bootstrap_servers": cluster.bootstrap_servers, "session_timeout_ms": 60_000}
    with (
        headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        headrace.Consumer("kept", group_id="g", auto_offset_reset="earliest", **settings) as consumer,
    ):
        until(lambda: consumer.poll(timeout=0.1) or consumer.assignment(), "the partition", SECONDS)
        epoch = admin.describe_group("g").group_epoch
        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(3):
                so_far = len(acknowledged)
                until(lambda so_far=so_far: len(acknowledged) > so_far + 200, "acknowledged records", SECONDS)
                part.kill()
                cluster.restart(part)
        finally:
            ends.set()
            sender.join(SECONDS)
        assert consumer.assignment() == [TopicPartition("kept", 0)]
        until(lambda: consumer.poll(timeout=0.1) is not None and consumer.assignment(), "the member", SECONDS)
        assert admin.describe_group("g").group_epoch == epoch
    values = read(cluster, "kept")
    assert [int(values[offset]) for offset, _ in acknowledged] == [number for _, number in acknowledged]
    assert len(set(values)) == len(values)


def test_a_restart_does_not_wait_for_leases_of_the_dead_process(own_cluster):
    """Registrations last ten seconds, on other ports too; the new process ends them, because the old one is dead."""
    cluster = own_cluster(single=True, coordinator_settings={"lease_ttl_ms": 600_000})
    (part,) = cluster.parts
    create(cluster, "before")
    part.kill()
    cluster.restart(part)
    cluster.wait_until_healthy()
    create(cluster, "after")
    log = part.log_file.read_text()
    assert "registration_waits" not in log
    assert "coordinator_id_in_use" not in log
    assert log.count("dead_session_ended") == 2


def test_callers_without_an_identity_are_refused(own_cluster):
    """With `--identity` both services require the administrator's key, at the one address."""
    cluster = own_cluster(single=True, identity=True)
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **cluster.client_settings) as admin:
        admin.create_topic("mine")
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, **cluster.client_settings) as producer:
        producer.send("mine", b"1").result(SECONDS)
    with grpc.insecure_channel(cluster.bootstrap_servers) as channel, pytest.raises(grpc.RpcError) as refused:
        cluster_pb2_grpc.ClusterServiceStub(channel).DescribeCluster(
            cluster_pb2.DescribeClusterRequest(client_id="x"), timeout=30
        )
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_with_tls_every_caller_needs_a_certificate(own_cluster):
    """Over both protocols; the calls of the process to its own broker, which write the audit log, have one."""
    cluster = own_cluster(single=True, tls=True, identity=True)
    settings = {"bootstrap_servers": cluster.bootstrap_servers, **cluster.client_settings}
    with headrace.Admin(**settings) as admin:
        admin.create_topic("mine")
        until(lambda: "__audit" in admin.list_topics(), "the topic of the audit log", SECONDS)
    for transport in ("native", "grpc"):
        with headrace.Producer(transport=transport, **settings) as producer:
            producer.send("mine", transport.encode()).result(SECONDS)
        with headrace.Reader("mine", transport=transport, **settings) as reader:
            assert transport.encode() in [record.value for record in reader.read(timeout=SECONDS)]

    def audited():
        with headrace.Reader("__audit", **settings) as reader:
            return reader.read(timeout=SECONDS)

    until(audited, "an event in the audit log", SECONDS)
    authority = cluster.certificates.services.ca_file.read_bytes()
    strangers = (
        grpc.insecure_channel(cluster.bootstrap_servers),
        grpc.secure_channel(cluster.bootstrap_servers, grpc.ssl_channel_credentials(authority)),
    )
    for channel in strangers:
        with channel, pytest.raises(grpc.RpcError) as refused:
            cluster_pb2_grpc.ClusterServiceStub(channel).DescribeCluster(
                cluster_pb2.DescribeClusterRequest(client_id="x"), timeout=30
            )
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_damaged_metastore_is_named(tmp_path):
    """The start ends with the file and the next step, and not with an empty cluster."""
    spec = LocalClusterSpec(single=True, directory=tmp_path)
    with LocalCluster(spec) as cluster:
        create(cluster, "kept")
    (tmp_path / "metastore.sqlite").write_bytes(b"damaged " * 1_000)
    with pytest.raises(PartStartError, match=r"metastore.sqlite is damaged: .*Put back a copy"):
        LocalCluster(spec).start()


def test_what_it_has_not_is_refused():
    with pytest.raises(ValueError, match="no racks"):
        LocalClusterSpec(single=True, racks=("a",))


@pytest.fixture
def command(tmp_path):
    """The commands on a directory; the cluster is stopped at the end."""

    def run(verb, *arguments):
        line = [*COMMAND, verb, "--data-dir", str(tmp_path), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=SECONDS)

    yield run
    run("down")


def test_up_status_down(command, tmp_path):
    """`up --single` starts one process, a second one finds it, `status` and `down` work on it.

    After kill -9 `up` starts it with its data, on other ports.
    """
    first = command("up", "--single", "--any-port")
    assert first.returncode == 0, first.stderr
    assert "the cluster is up in one process: bootstrap_servers=127.0.0.1:" in first.stdout
    assert "\nexport HEADRACE_BOOTSTRAP_SERVERS=127.0.0.1:" in first.stdout
    state = json.loads(command("status", "--json").stdout)
    assert [part["name"] for part in state["parts"]] == ["single"]
    assert state["parts"][0]["pid"] == state["pid"]
    with headrace.Admin(bootstrap_servers=state["bootstrap_servers"]) as admin:
        admin.create_topic("two", partitions=2)
    again = command("up", "--single")
    assert f"a cluster is already running (process {state['pid']})" in again.stdout
    leads = until(lambda: json.loads(command("status", "--json").stdout)["leadership"]["leaders"] == {"1": 2}, "leads")
    assert leads
    (row,) = [line for line in command("status").stdout.splitlines() if line.split()[:1] == ["single"]]
    assert row.split()[2:5] == [str(state["pid"]), "running", "2"]
    os.kill(state["pid"], signal.SIGKILL)
    until(lambda: process_state(state["pid"]) == "stopped", "the end")
    assert command("status").returncode == 3
    assert command("up", "--single", "--any-port").returncode == 0
    after = json.loads(command("status", "--json").stdout)
    with headrace.Admin(bootstrap_servers=after["bootstrap_servers"]) as admin:
        assert admin.list_topics() == ["two"]
    assert command("down").stdout == "stopped\n"
    assert process_state(after["pid"]) == "stopped"
    assert "clean=True" in (tmp_path / "run.log").read_text()
    other = command("up", "--brokers", "1")
    assert other.returncode == 1
    assert "holds a cluster in one process. Start it with --single" in other.stderr


def test_up_with_tls(command):
    """`up --single --tls` prints the settings of its clients, and `status` uses them."""
    started = command("up", "--single", "--any-port", "--tls", "--identity")
    assert started.returncode == 0, started.stderr
    state = json.loads(command("status", "--json").stdout)
    assert state["schema_registry"].startswith("https://")
    for name, value in state["client_settings"].items():
        assert f"\nexport HEADRACE_{name.upper()}={value}" in started.stdout
    assert set(state["client_settings"]) == {
        "security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "api_key_file",
    }  # fmt: skip
    assert state["leadership"] is not None
    with headrace.Admin(bootstrap_servers=state["bootstrap_servers"], **state["client_settings"]) as admin:
        admin.create_topic("mine")


def test_options_that_it_has_not_are_refused(command):
    """An option without an effect is an error, whatever its value."""
    refused = command("up", "--single", "--brokers", "3")
    assert refused.returncode == 2
    assert "--brokers" in refused.stderr


def test_a_port_in_use_is_named(command):
    """The start says which of its fixed ports is taken."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", 7171))
        except OSError:
            pytest.skip("another cluster has the port")
        holder.listen()
        failed = command("up", "--single")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: port 71"), failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number, tmp_path):
    """Ctrl-C and SIGTERM in the foreground: exit code 0, everything stored, the directory free."""
    arguments = [*COMMAND, "run", "--single", "--any-port", "--data-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        lines = iter(process.stdout.readline, "")
        assert any("the cluster is up" in line for line in lines)
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(SECONDS) == 0
    assert "clean=True" in rest
    assert (tmp_path / "metastore.sqlite").exists()
    assert not Path(f"{tmp_path}/metastore.sqlite-wal").exists()


def test_users_of_the_sdk_get_the_same():
    """`headrace.testing` starts one, which may be killed and started again; it has no part `etcd`."""
    started = time.monotonic()
    with testing.cluster(single=True) as cluster:
        assert time.monotonic() - started < SECONDS
        assert list(cluster.parts) == ["single"]
        create(cluster, "mine")
        produce(cluster, "mine", [b"1"])
        cluster.kill("single")
        cluster.restart("single")
        produce(cluster, "mine", [b"2"])
        assert read(cluster, "mine") == [b"1", b"2"]
        with pytest.raises(testing.TestClusterError, match="no part 'etcd'; there are single"):
            cluster.kill("etcd")
