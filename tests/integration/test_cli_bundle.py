"""`headrace doctor bundle` of a real cluster with a killed broker: complete but for that broker, without data."""

import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import headrace as sdk
import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace_devcluster.cluster import LocalCluster

SECONDS = 60.0
METRICS = {"metrics_listen": "127.0.0.1:0", "log_level": "debug"}
VALUE, KEY, HEADER, PASSWORD = (f"planted-{what}-7d1f" for what in ("value", "key", "header", "password"))


def write_records(cluster: LocalCluster) -> None:
    """A topic on all brokers with planted records, read by a group that commits its offsets."""
    with sdk.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("clicks", 3, 3)
    with sdk.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(30):
            producer.send("clicks", VALUE.encode(), key=KEY.encode(), headers=[("h", HEADER.encode())])
        producer.flush(SECONDS)
    with sdk.Consumer(
        "clicks", group_id="billing", auto_offset_reset="earliest", bootstrap_servers=cluster.bootstrap_servers
    ) as consumer:
        assert next(iter(consumer)).value == VALUE.encode()
        consumer.commit()


def test_a_bundle_of_a_cluster_with_a_dead_broker(
    own_cluster: Callable[..., LocalCluster], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The other processes are described, with logs and metrics; the dead one is a problem; nothing planted is in it."""
    cluster = own_cluster(brokers=3, coordinators=1, broker_settings=METRICS, coordinator_settings=METRICS)
    write_records(cluster)
    logs = cluster.parts[0].log_file.parent
    (logs / "sidecar.log").write_text(f"etcd_password={PASSWORD}\nkey={KEY} value='{VALUE}'\nerror: b'{HEADER}'\n")
    victim = next(part for part in cluster.parts if part.name == "broker-2")
    victim.kill()
    out = tmp_path / "bundle.tar.gz"
    arguments = ["doctor", "bundle", "--out", str(out), "--logs", str(logs), "--output", "json"]
    began = time.monotonic()
    code = run([*arguments, "-b", cluster.bootstrap_servers], SdkClients())
    took = time.monotonic() - began
    captured = capsysbinary.readouterr()
    told = json.loads(captured.out)
    with tarfile.open(out) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    assert code == ExitCode.FAILED
    assert took < SECONDS
    assert {each["name"] for each in told["files"]} == set(files)
    assert any("broker-2" in each["reason"] or "broker 2" in each["reason"] for each in told["problems"])
    processes = {each["name"]: each for each in json.loads(files["processes.json"])}
    assert processes["broker-1"]["disk"]["free_bytes"] > 0
    assert processes["broker-1"]["settings"]["metrics_listen"] == METRICS["metrics_listen"]
    assert processes["coordinator-a"]["settings"]["coordinator_id"] == "a"
    assert json.loads(files["topics/clicks.json"])["configs"]
    assert json.loads(files["groups/billing.json"])["partitions"]
    assert {"logs/broker-1.log", "logs/broker-2.log", "logs/coordinator-a.log", "logs/sidecar.log"} <= set(files)
    pages = [content for name, content in files.items() if name.startswith("metrics/") and b"headrace_" in content]
    assert len(pages) >= 3, [each["reason"] for each in told["problems"]]
    for secret in (VALUE, KEY, HEADER, PASSWORD):
        assert [name for name, content in files.items() if secret.encode() in content] == []
    assert b"headrace: metrics of " in captured.err
