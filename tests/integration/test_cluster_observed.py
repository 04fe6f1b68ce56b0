"""What a cluster reports to operators: lag of groups, health of processes, what to repair."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import grpc
import headrace
import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace.v1 import broker_pb2 as pb
from headrace.v1 import broker_pb2_grpc, process_pb2, process_pb2_grpc, topics_pb2
from headrace.wire.errors import InvalidRequestError, from_rpc_error
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.health import HEALTH_NAMES, HealthCause

from tests.integration.health_causes import expected, over_grpc, over_http
from tests.integration.replicated import until

SECONDS = 30
LOCAL_CHANNEL = (("grpc.use_local_subchannel_pool", 1),)
OBSERVED = {"metrics_listen": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers and two coordinators that answer over HTTP and measure lag often."""
    spec = LocalClusterSpec(
        brokers=2, broker_settings=OBSERVED, coordinator_settings={**OBSERVED, "lag_interval_ms": 100}
    )
    with LocalCluster(spec) as found:
        yield found


def describe(part: Any, **fields: Any) -> process_pb2.DescribeProcessResponse:
    """One process by itself."""
    with grpc.insecure_channel(part.address, options=LOCAL_CHANNEL) as channel:
        stub = process_pb2_grpc.ProcessServiceStub(channel)
        answer: process_pb2.DescribeProcessResponse = stub.DescribeProcess(
            process_pb2.DescribeProcessRequest(**fields), timeout=SECONDS
        )
        return answer


def test_the_lag_of_a_group_is_seen_at_the_controller(cluster: LocalCluster) -> None:
    """In records and in seconds, by topic and by partition; one coordinator says it and no other."""
    topic = "lagging"
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=7)  # Leaders have several of them.
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [b"a"] * 10)
        producer.flush(timeout=SECONDS)
        with headrace.Consumer(
            topic, bootstrap_servers=cluster.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"
        ) as consumer:
            taken = 0
            while taken < 10:
                taken += len(consumer.poll(timeout=1.0))
            consumer.commit()
        before = time.time()
        producer.send_many(topic, [b"b"] * 7)
        producer.flush(timeout=SECONDS)
    of_group = f'{{group="billing",topic="{topic}"}}'

    def lagging() -> Any:
        for part in cluster.coordinators:
            found = part.metrics()
            if found.get(f"headrace_coordinator_group_lag_records{of_group}") == 7:
                return part, found
        return None

    part, found = until(lagging, "the lag")
    assert 0 <= found[f"headrace_coordinator_group_lag_seconds{of_group}"] <= time.time() - before + 1
    assert found[f"headrace_coordinator_group_offset{of_group}"] == 10
    assert found['headrace_coordinator_group_unknown_partitions{group="billing"}'] == 0
    detail = part.metrics("/metrics/detail")
    name = "headrace_coordinator_group_partition_lag_records"
    assert sum(value for key, value in detail.items() if key.startswith(name)) == 7
    (other,) = [each for each in cluster.coordinators if each is not part]
    assert not [key for key in other.metrics() if "group_lag_records{" in key]
    assert found["headrace_coordinator_etcd_has_leader"] == 1
    assert 0 < found["headrace_coordinator_etcd_db_bytes"] < found["headrace_coordinator_etcd_db_quota_bytes"]
    assert found['headrace_coordinator_etcd_request_seconds_count{operation="txn"}'] > 0
    assert found['headrace_coordinator_call_seconds_count{method="CommitOffsets"}'] >= 0


def test_a_record_is_found_by_its_offset_with_its_arrival(cluster: LocalCluster) -> None:
    """ListOffsets by RECORD: the leader's clock at the append of its batch; nothing at the end of the log."""
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        topic_id = admin.create_topic("by-record").topic_id
        leader = until(lambda: admin.describe_topics(["by-record"])[0].partitions[0].leader_id, "a leader")
        address = next(each.address for each in admin.describe_cluster().brokers if each.broker_id == leader)
    before_ms = time.time_ns() // 1_000_000
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many("by-record", [b"x"] * 3, timestamps_ms=[1, 2, 3])
    after_ms = time.time_ns() // 1_000_000
    with grpc.insecure_channel(address, options=LOCAL_CHANNEL) as channel:
        asked = [
            pb.PartitionListOffsets(partition=0, spec=pb.OFFSET_SPEC_RECORD, offset=offset) for offset in (0, 2, 3)
        ]
        topics = [pb.TopicListOffsets(topic=topics_pb2.TopicRef(topic_id=topic_id), partitions=asked)]
        answer = broker_pb2_grpc.BrokerServiceStub(channel).ListOffsets(
            pb.ListOffsetsRequest(topics=topics), timeout=SECONDS
        )
    first, last, end = answer.topics[0].partitions
    assert (first.offset, last.offset, end.offset, end.timestamp_ms) == (0, 2, 3, -1)
    assert before_ms - 1 <= first.timestamp_ms == last.timestamp_ms <= after_ms + 1


def test_a_process_describes_itself_and_its_log_level_changes(cluster: LocalCluster) -> None:
    """Clock, files, disk, etcd; a level for a while, after which the old one holds again."""
    broker, coordinator = cluster.brokers[0], cluster.coordinators[0]
    found = describe(broker, measure_disk=True)
    assert (found.name, found.log_level, found.pid) == ("broker-1", "info", broker.pid)
    assert abs(found.now_ms - time.time_ns() // 1_000_000) < 5_000
    assert 0 < found.open_files < found.max_open_files
    assert found.disk.total_bytes > found.disk.free_bytes > 0
    assert found.disk.fsync_us > 0
    assert found.disk.filesystem
    assert [(each.name, list(each.causes)) for each in found.health] == [
        ("startup", []),
        ("liveness", []),
        ("readiness", []),
    ]
    (member,) = describe(coordinator).etcd
    assert member.version.startswith("3.")
    assert (member.error, member.has_leader, list(member.alarms)) == ("", True, [])
    assert not describe(coordinator).HasField("disk")
    with grpc.insecure_channel(broker.address, options=LOCAL_CHANNEL) as channel:
        stub = process_pb2_grpc.ProcessServiceStub(channel)
        answer = stub.SetLogLevel(process_pb2.SetLogLevelRequest(level="debug", duration_ms=600), timeout=SECONDS)
        assert answer.previous_level == "info"
        assert describe(broker).log_level == "debug"
        meant = process_pb2.SetLogLevelRequest(level="error", server="broker-2")
        assert stub.SetLogLevel(meant, timeout=SECONDS).name == answer.name == "broker-1"
        assert describe(broker).log_level == "debug"
        until(lambda: describe(broker).log_level == "info", "the old level")
        with pytest.raises(grpc.RpcError) as refused:
            stub.SetLogLevel(process_pb2.SetLogLevelRequest(level="loud"), timeout=SECONDS)
    assert isinstance(from_rpc_error(refused.value), InvalidRequestError)
    text = broker.log_file.read_text()
    assert "call_answered" in text
    assert "log_level_changed" in text


def test_a_request_id_goes_through_client_and_servers(cluster: LocalCluster) -> None:
    """The name in the client's error is in the logs of every server that the operation reached."""
    parts = [*cluster.coordinators, *cluster.brokers]
    for part in parts:
        with grpc.insecure_channel(part.address, options=LOCAL_CHANNEL) as channel:
            process_pb2_grpc.ProcessServiceStub(channel).SetLogLevel(
                process_pb2.SetLogLevelRequest(level="debug", duration_ms=60_000), timeout=SECONDS
            )
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with pytest.raises(headrace.HeadraceError) as refused:
            admin.delete_topic("there-is-none")
        name = refused.value.request_id
        assert name
        assert name in str(refused.value)
        logged = "\n".join(part.log_file.read_text() for part in cluster.coordinators)
        assert any(name in line and "DeleteTopics" in line for line in logged.splitlines())
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("small", config={"max_batch_bytes": 2048})
            future = producer.send("small", b"x")
            future.result(timeout=SECONDS)
    logged = "\n".join(part.log_file.read_text() for part in cluster.brokers)
    assert any("Produce" in line and "request_id=" in line for line in logged.splitlines())


def test_the_doctor_finds_what_is_wrong_with_a_cluster(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every process is queried; a paused one is a failure, reported in one line."""
    arguments = ["doctor", "--output", "json", "--timeout", "5", "--bootstrap-servers", cluster.bootstrap_servers]
    run(arguments, SdkClients())
    document = json.loads(capfd.readouterr().out)
    reached = {
        each["where"] for each in document["findings"] if each["check"] == "reachable" and each["status"] == "ok"
    }
    assert reached == {"coordinator-a", "coordinator-b", "broker-1", "broker-2"}
    assert {"clock", "disk_space", "fsync", "etcd_version", "etcd_quota", "posture", "credential"} <= {
        each["check"] for each in document["findings"]
    }
    assert all(each["action"] for each in document["findings"] if each["status"] != "ok")
    broker = cluster.brokers[1]
    broker.pause()
    try:
        assert run([*arguments, "--timeout", "1"], SdkClients()) == ExitCode.UNHEALTHY
    finally:
        broker.resume()
    failures = [each for each in json.loads(capfd.readouterr().out)["findings"] if each["status"] == "failure"]
    assert ("reachable", "broker-2") in {(each["check"], each["where"]) for each in failures}


def test_health_has_the_same_causes_over_grpc_http_and_in_the_doctor(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of brokers and coordinators; a drained broker is not ready for one cause, with what to do."""
    arguments = ["doctor", "--output", "json", "--bootstrap-servers", cluster.bootstrap_servers]
    drained = expected(HealthCause.DRAINED)
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.drain_broker(1)
        try:
            until(lambda: over_http(cluster.brokers[0].metrics_address) == drained, "the drain")
            for part in (*cluster.brokers, *cluster.coordinators):
                with grpc.insecure_channel(part.address, options=LOCAL_CHANNEL) as channel:
                    found = over_grpc(channel)
                assert found == over_http(part.metrics_address)
                assert found == (drained if part is cluster.brokers[0] else expected())
            run(arguments, SdkClients())
        finally:
            admin.undrain_broker(1)
    findings = json.loads(capfd.readouterr().out)["findings"]
    shown = [(each["where"], each["found"], each["action"]) for each in findings if each["check"] in HEALTH_NAMES]
    assert shown == [("broker-1", *drained["readiness"][0])]
