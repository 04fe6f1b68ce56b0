"""A mirror between two closed releases, by the commands and values of docs/guides/mirror-deployment.md."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.records import until
from tests.kubernetes.conftest import Figure
from tests.kubernetes.inside import CHART
from tests.kubernetes.machines import DOMAIN, Machines
from tests.kubernetes.release import Release

pytestmark = pytest.mark.timeout(900)

TIMEOUT = "--timeout=6m"
# One broker and one coordinator each: the workers and what they reach are under test, not replication.
SMALL = {**yaml.safe_load((CHART.parent / "small.yaml").read_text("utf-8")), "backup": {"enabled": False}}
SMALL = {**SMALL, "broker": {**SMALL["broker"], "replicas": 1}, "coordinator": {**SMALL["coordinator"], "replicas": 1}}
MIRROR = {
    "mirror": {
        "enabled": True,
        "apiKeySecretName": "mirror-key",
        "sources": [{"name": "west", "secretName": "west"}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }
}
FILES = "/etc/headrace-sources/west"
RECORDS = 300


class Cluster(Release):
    """A release with its administrator, whose key and authority are in a coordinator's container."""

    @property
    def servers(self) -> str:
        """What its clients connect to first, from every namespace."""
        return f"{self.fullname}.{self.namespace}.svc.{DOMAIN}:7170"

    def worker(self, *grants: tuple[str, str]) -> str:
        """Create the user of the workers with these grants; return its API key."""
        self.headrace("user", "create", "mirror")
        for role, resource in grants:
            self.headrace("grant", "mirror", role, resource)
        return self.headrace("user", "key", "create", "mirror").strip()

    def ends(self, topic: str) -> dict[int, int]:
        """End offsets by partition."""
        found = json.loads(self.headrace("topic", "describe", topic, "--output", "json"))
        return {each["partition"]: each["high_watermark"] for each in found["partitions"]}


def installed(name: str) -> Iterator[Cluster]:
    """A release in a namespace of its own, uninstalled in the end."""
    release = Cluster(name, name)
    release.helm("install", "--wait", TIMEOUT, values=SMALL)
    yield release
    release.helm("uninstall")
    release.kubectl("delete", "pvc", "--all", "--wait=false")


@pytest.fixture(scope="module")
def west(machines: Machines) -> Iterator[Cluster]:
    """The source."""
    yield from installed("west")


@pytest.fixture(scope="module")
def east(machines: Machines, west: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that has the mirror; its workers are installed by an upgrade, with keys of users of their own."""
    for release in installed("east"):
        files = tmp_path_factory.mktemp("keys")
        source_key = west.worker(("describe", "cluster"), ("reader", "topic:*"))
        own_key = release.worker(("developer", "topic:*"), ("owner", "topic:headrace-mirrors"), ("reader", "group:*"))
        (tls,) = west.objects("secret", f"{west.fullname}-tls")
        authority = base64.b64decode(tls["data"]["ca.crt"]).decode()
        secret(release, files, "west", {"api-key": source_key, "ca.crt": authority})
        secret(release, files, "mirror-key", {"api-key": own_key})
        release.helm("upgrade", "--reset-then-reuse-values", "--wait", TIMEOUT, values=MIRROR)
        yield release


def secret(release: Release, directory: Path, name: str, contents: dict[str, str]) -> None:
    """Create a secret with these files."""
    words = []
    for file, text in contents.items():
        path = directory / f"{name}-{file}"
        path.write_text(text, "utf-8")
        words.append(f"--from-file={file}={path}")
    release.kubectl("create", "secret", "generic", name, *words)


def status(release: Cluster) -> dict[str, Any]:
    """What `headrace mirror status` reports; its exit code is 0 only where all is copied."""
    found: dict[str, Any] = json.loads(release.headrace("mirror", "status", "west", "--output", "json"))
    return found


def test_workers_of_the_chart_copy_another_release(west: Cluster, east: Cluster, figure: Figure) -> None:
    """Over TLS, by keys of the guide's rights: ends are equal, status has two workers and no lag, until a promotion
    after which this cluster's producers write, and the source's records stay there."""
    west.headrace("topic", "create", "orders", "--partitions", "3")
    west.headrace("produce", "orders", stdin="".join(f"{number}\n" for number in range(RECORDS)))
    ends = west.ends("orders")
    assert sum(ends.values()) == RECORDS
    settings = {"security_protocol": "SSL", "ssl_cafile": f"{FILES}/ca.crt", "api_key_file": f"{FILES}/api-key"}
    given = [word for name, value in settings.items() for word in ("--source-setting", f"{name}={value}")]
    east.headrace("mirror", "create", "west", "--source", west.servers, "--topics", "orders", *given)

    def is_copied() -> bool:
        found = json.loads(east.headrace("mirror", "list", "--output", "json"))[0]
        is_whole = (found["topics"], found["lag"], found["workers"]) == (1, 0, 2) and east.ends("orders") == ends
        return is_whole and all("end_offset" in each for each in status(east)["partitions"])

    figure("a mirror between two releases is equal after", f"{until(is_copied, 'the ends are equal'):.0f} s")
    found = status(east)
    assert (found["state"], found["lag"], found["problem"]) == ("copying", 0, None)
    assert {each["end_offset"] == each["source_end_offset"] for each in found["partitions"]} == {True}
    pods = {each["metadata"]["name"] for each in east.objects("pods", "--selector=app.kubernetes.io/component=mirror")}
    assert len(pods) == 2
    assert {each["worker"] for each in found["partitions"]} <= pods

    east.headrace("mirror", "promote", "west", "--wait", "--yes")  # In a pod without the files of the source.
    assert status(east)["state"] == "promoted"
    east.headrace("produce", "orders", stdin="own\n")
    west.headrace("produce", "orders", stdin="late\n")
    assert sum(east.ends("orders").values()) == RECORDS + 1
    for release in (west, east):
        assert set(release.restarts().values()) == {0}
