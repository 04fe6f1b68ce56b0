"""Operational metrics: this machine's processors, memory, disks and network from /proc, as JSON.

Counters become rates between two samples. A source that the machine lacks (such as disks in a container) is omitted
from the sample and named in `absent`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

SECTOR_BYTES = 512
"""Unit of /proc/diskstats, independent of the disk's sector size."""
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class MachineSampler:
    """Reader of /proc; for one thread."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: dict[str, dict[str, float]] = {}
        self._before_at = time.monotonic()
        self.absent: set[str] = set()
        """Sources that could not be read."""
        self._host = self._read("sys/kernel/hostname").strip() or "localhost"
        self.sample()

    def sample(self) -> list[tuple[bytes, bytes]]:
        """Return key (the kind of metric) and value (JSON) of each metric, with rates since the previous sample."""
        now = time.monotonic()
        seconds = max(now - self._before_at, 1e-3)
        counters = {**self._cpus(), **self._disks(), **self._networks()}
        metrics = []
        for name, counts in counters.items():
            before = self._before.get(name)
            if before is None:
                continue
            kind = name.partition(":")[0]
            rates = {field: counts[field] - before.get(field, 0.0) for field in counts}
            metrics.append((kind, name, _shares(rates) if kind == "cpu" else _per_second(rates, seconds)))
        memory = self._memory()
        if memory:
            metrics.append(("memory", "memory", memory))
        self._before, self._before_at = counters, now
        at_ms = time.time_ns() // 1_000_000
        return [
            (kind.encode(), json.dumps({"at_ms": at_ms, "host": self._host, "metric": name, **values}).encode())
            for kind, name, values in metrics
        ]

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            self.absent.add(name)
            return ""

    def _cpus(self) -> dict[str, dict[str, float]]:
        found = {}
        for line in self._read("stat").splitlines():
            name, *numbers = line.split()
            if name.startswith("cpu"):
                found[f"cpu:{name}"] = dict(zip(_CPU_FIELDS, map(float, numbers), strict=False))
        return found

    def _memory(self) -> dict[str, float]:
        found = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable", "Cached", "Dirty", "Writeback"):
                found[f"{name.lower()}_bytes"] = float(rest.split()[0]) * 1024
        return found

    def _disks(self) -> dict[str, dict[str, float]]:
        found = {}
        for line in self._read("diskstats").splitlines():
            fields = line.split()
            if len(fields) >= 14 and not fields[2].startswith(("loop", "ram")):
                reads, read_sectors, writes, written_sectors = (float(fields[n]) for n in (3, 5, 7, 9))
                found[f"disk:{fields[2]}"] = {
                    "reads": reads,
                    "read_bytes": read_sectors * SECTOR_BYTES,
                    "writes": writes,
                    "written_bytes": written_sectors * SECTOR_BYTES,
                }
        return found

    def _networks(self) -> dict[str, dict[str, float]]:
        found = {}
        for line in self._read("net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            numbers = [float(number) for number in rest.split()]
            found[f"network:{name.strip()}"] = {
                "received_bytes": numbers[0],
                "received_packets": numbers[1],
                "sent_bytes": numbers[8],
                "sent_packets": numbers[9],
            }
        return found


def _shares(ticks: dict[str, float]) -> dict[str, float]:
    total = sum(ticks.values()) or 1.0
    return {f"{name}_ratio": round(value / total, 4) for name, value in ticks.items()}


def _per_second(counts: dict[str, float], seconds: float) -> dict[str, float]:
    return {f"{name}_per_second": round(value / seconds, 1) for name, value in counts.items()}
