"""What is wrong with the machine of one process of a test: its wall clock from a start on, its disk at any moment.

The process's interpreter loads `faulty_machine/sitecustomize.py`, which does it; nothing of it is in the product.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.service import LocalService

SHIM = Path(__file__).parent / "faulty_machine"
FILE_OPERATIONS = ("create", "write", "allocate", "truncate", "sync", "rename", "mkdir", "unlink", "rmdir")
"""All by which a broker changes its disk."""


class Machine:
    """What a process finds that is started with `environment`. `disk`: below which its files lie."""

    def __init__(self, directory: Path, disk: Path | None = None) -> None:
        self._directory = directory
        directory.mkdir()
        before = os.environ.get("PYTHONPATH")
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(SHIM), *([before] if before else [])]),
            "HEADRACE_TEST_MACHINE": str(directory),
            "HEADRACE_TEST_DISK": str(disk or ""),
        }

    def set_clock(self, offset_ms: int) -> None:
        """From the next start on the wall clock is wrong by so much; 0: it is right."""
        path = self._directory / "offset_ms"
        if offset_ms:
            path.write_text(str(offset_ms))
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def full_disk(self, operations: Sequence[str]) -> Iterator[None]:
        """No room for file operations of these kinds, meanwhile."""
        path = self._directory / "full"
        partial = path.with_suffix(".partial")
        partial.write_text(" ".join(operations))
        partial.replace(path)
        try:
            yield
        finally:
            path.unlink()

    def refused(self) -> Counter[str]:
        """How many operations of each kind found no room until now."""
        try:
            lines = (self._directory / "refused").read_text().splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter(line.split(" ")[0] for line in lines)


def put_on_machines(cluster: LocalCluster) -> dict[int, Machine]:
    """Start the brokers of a cluster again, each on a machine whose faults are in the test's hand."""
    machines = {}
    for index, broker in enumerate(cluster.brokers):
        machine = machines[index + 1] = Machine(
            cluster.directory / f"machine-{index + 1}", cluster.directory / f"broker-{index + 1}"
        )
        broker.stop()
        port = int(broker.address.rpartition(":")[2])
        spec = dataclasses.replace(broker.spec, port=port, environment=machine.environment)
        cluster.brokers[index] = LocalService(spec)
        cluster.restart(cluster.brokers[index])
    return machines
