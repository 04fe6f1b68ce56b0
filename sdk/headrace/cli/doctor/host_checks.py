"""What `headrace doctor` makes of the machine that it runs on: facts in, findings out. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cli.common.findings import Finding, Status, judged
from headrace.cli.common.rendering import bytes_text
from headrace.cli.doctor.checks import BROKER_FILES, check_certificate, check_disk, check_open_files
from headrace.client.admin.processes import CertificateDescription, DiskDescription

LEAST_MEMORY_BYTES = 512 << 20
LEAST_THREADS = 1_024
"""A broker has some threads for its disk, and gRPC's own."""
LARGEST_SEGMENT_BYTES = (2 << 30) - 1
"""What `segment_bytes` of a topic may be; a write beyond the limit of a file's size fails."""
LEAST_FREE_FILES = 100_000
"""Each segment of a log is three files."""


@dataclass(frozen=True, slots=True)
class UnreadableCertificate:
    """A file that was named as a certificate and is none."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine that doctor runs on, and what holds for a process that is started as doctor was. -1: no limit."""

    name: str
    max_open_files: int
    clock_synchronised: bool | None
    """None: the kernel does not say."""
    available_memory_bytes: int
    """What is left of the machine's, or the control group's limit where that is less; -1: not known."""
    max_threads: int = -1
    """Of the user and of the control group together."""
    max_file_bytes: int = -1
    disk: DiskDescription | None = None
    """Of the data directory that was named."""
    free_files: int = -1
    """How many more files its file system can have; -1: it does not say."""
    certificates: tuple[CertificateDescription | UnreadableCertificate, ...] = ()
    """Of the files that were named."""


def check_host(facts: HostFacts, now_ms: int) -> list[Finding]:
    """Everything about the machine."""
    where = f"host {facts.name}"
    found = [check_open_files(where, -1, facts.max_open_files, BROKER_FILES), *_check_limits(where, facts)]
    if facts.clock_synchronised is not None:
        found.append(
            judged(
                "clock_synchronised",
                where,
                Status.OK if facts.clock_synchronised else Status.WARNING,
                "synchronised" if facts.clock_synchronised else "no program sets the kernel's clock",
                "Run chrony or another NTP client.",
            )
        )
    if facts.available_memory_bytes >= 0:
        is_short = facts.available_memory_bytes < LEAST_MEMORY_BYTES
        found.append(
            judged(
                "memory",
                where,
                Status.WARNING if is_short else Status.OK,
                f"{bytes_text(facts.available_memory_bytes)} available",
                "Give a broker at least 512 MiB, and the page cache the rest.",
            )
        )
    if facts.disk is not None:
        place = f"{where} {facts.disk.data_dir}"
        found += check_disk(place, facts.disk)
        if facts.free_files >= 0:
            status = Status.WARNING if facts.free_files < LEAST_FREE_FILES else Status.OK
            shown = f"room for {facts.free_files:,} more files"
            found.append(
                judged("free_files", place, status, shown, "Make the file system anew with more inodes, or XFS.")
            )
    return [*found, *(_check_certificate_file(where, each, now_ms) for each in facts.certificates)]


def _check_limits(where: str, facts: HostFacts) -> Iterator[Finding]:
    threads, file_bytes = facts.max_threads, facts.max_file_bytes
    yield judged(
        "threads",
        where,
        Status.WARNING if 0 <= threads < LEAST_THREADS else Status.OK,
        "no limit" if threads < 0 else f"limit {threads}",
        f"Raise the limit of processes (LimitNPROC, TasksMax, a container's pids) to {LEAST_THREADS} or more.",
    )
    yield judged(
        "file_size",
        where,
        Status.FAILURE if 0 <= file_bytes < LARGEST_SEGMENT_BYTES else Status.OK,
        "no limit" if file_bytes < 0 else f"limit {bytes_text(file_bytes)}",
        "Take the limit of a file's size away (LimitFSIZE, ulimit -f): segments of logs are larger.",
    )


def _check_certificate_file(
    where: str, certificate: CertificateDescription | UnreadableCertificate, now_ms: int
) -> Finding:
    if isinstance(certificate, CertificateDescription):
        return check_certificate(where, certificate, now_ms)
    return Finding(
        "certificate",
        where,
        Status.FAILURE,
        f"{certificate.path}: {certificate.reason}",
        "Give a file with -----BEGIN CERTIFICATE-----, readable for who runs this.",
    )
