"""A storage class whose volumes are disks of the size asked for, made when claimed and grown when asked to.

What a storage driver does in a real cluster, here by a thread. A volume is an XFS on a loop device, on the node that
the scheduler chose, a `local` volume to Kubernetes; it grows while it is in use, as with most drivers.
The kernel frees the loop devices with the nodes' mounts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.machines import Machines

PROVISIONER = "headrace.test/disks"
CLASS = "disks"
PERIOD_SECONDS = 0.3
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"


def size_of(quantity: str) -> int:
    """Bytes of a quantity such as 50Gi."""
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) * UNITS[unit]


class Disks:
    """Serves the claims of one cluster, on a thread of its own."""

    def __init__(self, machines: Machines) -> None:
        self._machines, self._api = machines, machines.api
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    @contextmanager
    def served(self) -> Iterator[None]:
        """Make the class the default, and serve claims meanwhile."""
        self._api.create(
            "/apis/storage.k8s.io/v1/storageclasses",
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
                "provisioner": PROVISIONER,
                "allowVolumeExpansion": True,
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )
        before = signal.signal(signal.SIGUSR1, self._end_tests)
        thread = threading.Thread(target=self._serve, name="disks")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            signal.signal(signal.SIGUSR1, before)
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        try:
            while not self._stop.wait(PERIOD_SECONDS):
                self._look()
        except BaseException as error:
            self._failure = error
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGUSR1)  # Which waits for pods whose volumes will not be made.

    def _end_tests(self, *_: object) -> None:
        pytest.exit(f"volumes are served no more: {self._failure!r}", returncode=1)

    def _look(self) -> None:
        volumes = {each["metadata"]["name"]: each for each in self._api.get(VOLUMES)["items"]}
        for claim in self._api.get(CLAIMS)["items"]:
            if claim["spec"].get("storageClassName") != CLASS:
                continue
            name = f"disk-{claim['metadata']['uid']}"
            node = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
            if name not in volumes and node:
                self._make(name, node, claim)
            elif name in volumes and claim["status"]["phase"] == "Bound":
                self._grow(volumes[name], claim)
        for name, volume in volumes.items():
            deleted = "deletionTimestamp" in volume["metadata"]  # It was removed, and Kubernetes has yet to let it go.
            if volume["status"].get("phase") == "Released" and name.startswith("disk-") and not deleted:
                self._remove(volume)

    def _make(self, name: str, node: str, claim: dict[str, Any]) -> None:
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        file, place = self._places(name)
        with file.open("wb") as disk:
            disk.truncate(size_of(wanted))
        place.mkdir()
        self._machines.within(node, "mkfs.xfs", "-q", "-K", str(file))
        self._machines.within(node, "mount", "-o", "loop", str(file), str(place))
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        metadata = claim["metadata"]
        self._api.create(
            VOLUMES,
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": wanted},
                    "accessModes": claim["spec"]["accessModes"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Retain",  # Removed below: nothing in Kubernetes knows how.
                    "claimRef": {
                        "kind": "PersistentVolumeClaim",
                        "namespace": metadata["namespace"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    },
                    "local": {"path": str(place)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
                },
            },
        )

    def _grow(self, volume: dict[str, Any], claim: dict[str, Any]) -> None:
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        if size_of(wanted) <= size_of(claim["status"]["capacity"]["storage"]):
            return
        name, metadata = volume["metadata"]["name"], claim["metadata"]
        node = self._node_of(volume)
        file, place = self._places(name)
        with file.open("ab") as disk:
            disk.truncate(size_of(wanted))
        device = self._machines.within(node, "findmnt", "--noheadings", "--output=SOURCE", str(place)).strip()
        self._machines.within(node, "losetup", "--set-capacity", device)
        self._machines.within(node, "xfs_growfs", str(place))
        self._api.patch(f"{VOLUMES}/{name}", {"spec": {"capacity": {"storage": wanted}}})
        path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}/status"
        self._api.patch(path, {"status": {"capacity": {"storage": wanted}}})

    def _remove(self, volume: dict[str, Any]) -> None:
        file, place = self._places(volume["metadata"]["name"])
        self._machines.within(self._node_of(volume), "umount", str(place))
        self._api.delete(f"{VOLUMES}/{volume['metadata']['name']}")
        place.rmdir()
        file.unlink()

    def _places(self, name: str) -> tuple[Any, Any]:
        folder = self._machines.state / "disks"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.disk", folder / name

    def _node_of(self, volume: dict[str, Any]) -> str:
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        node: str = term["matchExpressions"][0]["values"][0]
        return node
