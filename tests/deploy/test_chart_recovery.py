"""What the chart does for the bundled etcd's backups, and what it becomes while one is restored."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.deploy.conftest import Render, containers, one, select
from tests.deploy.matrix import MATRIX


def test_a_recovery_stops_everything_and_keeps_what_commands_need(render: Render) -> None:
    """Services' pods wait, with the same volumes and variables; etcd restores a snapshot before it starts."""
    values = MATRIX["recovery"]
    before, during = render({**values, "recovery": {"name": ""}}), render(values)
    for kind, name in (("StatefulSet", "-broker"), ("Deployment", "-coordinator")):
        (was,) = one(before, kind, name)["spec"]["template"]["spec"]["containers"]
        (now,) = one(during, kind, name)["spec"]["template"]["spec"]["containers"]
        gone = {"startupProbe", "livenessProbe", "readinessProbe", *(["lifecycle"] if name == "-broker" else [])}
        assert set(was) - set(now) == gone
        assert {each for each in set(was) & set(now) if was[each] != now[each]} == {"args"}
        assert (now["command"], now["args"]) == (["/bin/sh", "-c"], ["trap exit TERM; sleep infinity & wait"])
    for kind, name in (("StatefulSet", "-broker"), ("Deployment", "-coordinator"), ("StatefulSet", "-etcd")):
        was, now = (one(each, kind, name)["spec"]["template"]["metadata"]["labels"] for each in (before, during))
        assert now == {**was, "headrace.dev/recovery": "nov22"}
    assert not select(during, "Job")
    was, now = (one(each, "StatefulSet", "-etcd")["spec"]["template"]["spec"] for each in (before, during))
    steps = now.pop("initContainers")
    assert was == now
    assert [each["name"] for each in steps] == ["snapshot", "restore", "take-over"]
    environment = {each["name"]: each.get("value") for each in now["containers"][0]["env"]}
    assert {
        f"--initial-cluster={environment['ETCD_INITIAL_CLUSTER']}",
        f"--initial-cluster-token={environment['ETCD_INITIAL_CLUSTER_TOKEN']}",
        f"--initial-advertise-peer-urls={environment['ETCD_INITIAL_ADVERTISE_PEER_URLS']}",
        "--bump-revision=1000000000",
    } <= set(steps[1]["args"])
    older = render({**values, "etcd": {"bundled": {"image": {"tag": "v3.5.28"}}}})
    (_, restore, _) = one(older, "StatefulSet", "-etcd")["spec"]["template"]["spec"]["initContainers"]
    assert not [each for each in restore["args"] if "revision" in each]


def test_a_restore_is_done_once(render: Render, tmp_path: Path) -> None:
    """The unchanged steps, run on a folder, keep the old data; a restarted pod continues with the data that it has."""
    spec = one(render(MATRIX["recovery"]), "StatefulSet", "-etcd")["spec"]["template"]["spec"]
    snapshot, _, take_over = spec["initContainers"]

    def start(restored: str) -> None:
        for step in (snapshot, take_over):
            script = step["args"][0].replace("/var/lib/etcd", str(tmp_path))
            subprocess.run([*step["command"], script], check=True, timeout=20)
            if step is snapshot:
                (tmp_path / "restoring").mkdir()
                (tmp_path / "restoring" / "content").write_text(restored)

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "content").write_text("before")
    (tmp_path / "snapshot-nov22.db").write_text("")
    (tmp_path / "before-may").mkdir()
    (tmp_path / "snapshot-may.db").write_text("")
    start("restored")
    assert (tmp_path / "data" / "content").read_text() == "restored"
    assert (tmp_path / "before-nov22" / "content").read_text() == "before"
    (tmp_path / "data" / "content").write_text("written since")
    start("restored")
    assert (tmp_path / "data" / "content").read_text() == "written since"
    left = {"data", "before-nov22", "snapshot-nov22.db", "restored-nov22"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_backups_are_counted_and_kept(render: Render, tmp_path: Path) -> None:
    """Any member is asked, which its policy allows; the newest stay; a recovery only reads them."""
    objects = render(MATRIX["backups"])
    template = one(objects, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    take, keep = containers(template)
    assert take["command"][1] == "--endpoints=https://demo-headrace-etcd-headless.prod.svc.cluster.local:2379"
    environment = {each["name"]: each for each in take["env"]}
    assert environment["ETCDCTL_USER"]["value"] == "root"
    assert environment["ETCDCTL_PASSWORD"]["valueFrom"]["secretKeyRef"]["key"] == "root-password"
    assert environment["ETCDCTL_CACERT"]["value"] == "/etc/headrace-tls/ca.crt"
    assert "tls" in {mount["name"] for mount in take["volumeMounts"]}
    plain = containers(
        one(render(MATRIX["open"] | MATRIX["backups"]), "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    )
    assert plain[0]["command"][1] == "--endpoints=http://demo-headrace-etcd-headless.prod.svc.cluster.local:2379"
    assert "env" not in plain[0]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "backup"
    for day in range(1, 5):
        (tmp_path / f"headrace-2026-11-0{day}T00-17-00.db").write_text("")
    (tmp_path / "new.db").write_text("newest")
    script = keep["args"][0].replace("/backup", str(tmp_path))
    said = subprocess.run([*keep["command"], script], check=True, timeout=20, capture_output=True, text=True).stdout
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[:2] == ["headrace-2026-11-03T00-17-00.db", "headrace-2026-11-04T00-17-00.db"]
    assert (tmp_path / left[2]).read_text() == "newest"
    assert said.count("headrace-") == len(left) == 3
    during = render(MATRIX["recovery"])
    assert not select(during, "CronJob")
    reader = one(during, "Deployment", "-backup")["spec"]["template"]
    for pod in (template, reader):
        assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "snapshots"
