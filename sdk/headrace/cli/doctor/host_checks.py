"""Checks of `headrace doctor` on its own machine: facts in, findings out. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cli.common.findings import Finding, Status, judged
from headrace.cli.common.rendering import bytes_text
from headrace.cli.doctor.checks import BROKER_FILES, check_certificate, check_disk, check_open_files
from headrace.client.admin.processes import CertificateDescription, DiskDescription

LEAST_MEMORY_BYTES = 512 << 20
LEAST_THREADS = 1_024
"""A broker needs threads for its disk and for gRPC."""
LARGEST_SEGMENT_BYTES = (2 << 30) - 1
"""Maximum of a topic's `segment_bytes`; a write beyond the limit of the file size fails."""
LEAST_FREE_FILES = 100_000
"""Each segment of a log is three files."""


@dataclass(frozen=True, slots=True)
class UnreadableCertificate:
    """File that was given as a certificate and is not one."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the machine, and limits of a process that is started as doctor was. `-1` means no limit."""

    name: str
    max_open_files: int
    clock_synchronised: bool | None
    """`None` if the kernel does not report it."""
    available_memory_bytes: int
    """Available memory of the machine, or the control group's limit if that is less; `-1` means unknown."""
    max_threads: int = -1
    """Lower of the user's and the control group's limit."""
    max_file_bytes: int = -1
    disk: DiskDescription | None = None
    """Disk of the given data directory."""
    free_files: int = -1
    """Number of free inodes of its file system; `-1` means unknown."""
    certificates: tuple[CertificateDescription | UnreadableCertificate, ...] = ()
    """Certificates in the given files."""


def check_host(facts: HostFacts, now_ms: int) -> list[Finding]:
    """Return all findings about the machine."""
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
                judged("free_files", place, status, shown, "Recreate the file system with more inodes, or as XFS.")
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
        "Remove the limit of the file size (LimitFSIZE, ulimit -f): log segments are larger.",
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
        "Give a file with -----BEGIN CERTIFICATE-----, readable by the current user.",
    )
