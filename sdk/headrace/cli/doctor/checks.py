"""Checks of `headrace doctor` on a cluster's processes: descriptions in, findings out. Pure.

The limits are here, each with its reason.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from headrace.cli.common.findings import Finding, Status, judged
from headrace.cli.common.rendering import bytes_text, duration_text
from headrace.client.admin.processes import (
    CertificateDescription,
    DiskDescription,
    EtcdMemberDescription,
    ProcessDescription,
)
from headrace.wire.releases import are_close

CLOCK_WARNING_MS, CLOCK_FAILURE_MS = 500, 5_000
"""Retention and look-ups by time use the leader's clock; leases do not."""
BROKER_FILES, COORDINATOR_FILES = 65_536, 16_384
"""A broker has about three open files per log and a connection per client; a coordinator only connections."""
FILES_SHARE = 0.8
FSYNC_WARNING_US, FSYNC_FAILURE_US = 20_000, 200_000
"""Each acknowledged batch of a topic with durability=fsync waits for one."""
FREE_SHARE = 0.15
ETCD_ANSWER_WARNING_US = 100_000
ETCD_MINIMUM = (3, 5)
ETCD_PRODUCTION = {(3, 5): 28, (3, 6): 9}
"""First patch releases with the fixes that a production cluster needs."""
STORE_IN_PROCESS = "SQLite "
"""Beginning of the version that a cluster in one process reports in place of etcd's."""
ETCD_DEFAULT_QUOTA = 2 << 30
QUOTA_WARNING, QUOTA_FAILURE = 0.5, 0.7
"""As in the alerts HeadraceEtcdQuota and HeadraceEtcdNearlyFull: above its quota etcd rejects every write."""
FRAGMENTED_SHARE, FRAGMENTED_BYTES = 0.5, 256 << 20
CERTIFICATE_WARNING_MS = 30 * 86_400_000
"""Enough time for a manual renewal; cert-manager renews earlier."""
REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "gluster")
"""File systems on which fsync does not have the guarantees that a log needs."""
SHOWN_TOPIC_IDS = 3
FLEETING = ("tmpfs", "ramfs", "overlay")


def check_processes(processes: Sequence[ProcessDescription], now_ms: int) -> list[Finding]:
    """Return all findings about a cluster's processes and their etcd, process by process."""
    reached = [process for process in processes if not process.error]
    store = _store_in_process(reached)
    if store:  # Its services have one address, at which one of them describes the process.
        processes = [process for process in processes if not process.answered_by]
    found = [finding for process in processes for finding in _check_process(process, now_ms)]
    found += _check_versions(reached)
    found += _check_clocks({process.name: process.clock_ahead_ms for process in reached})
    if store:
        found.append(
            Finding(
                "one_process",
                "cluster",
                Status.WARNING,
                f"everything is one process, with {store} instead of etcd",
                "This is for one machine; run several processes and etcd where a failure must not stop the cluster.",
            )
        )
        return [*found, *_check_etcd(reached, store)]
    found += _check_redundancy(processes)
    return [*found, *_check_etcd(reached)]


def _store_in_process(reached: Sequence[ProcessDescription]) -> str:
    """Return name and release of the store of a cluster in one process; empty for any other cluster."""
    versions = (member.version for process in reached for member in process.etcd)
    return next((version for version in versions if version.startswith(STORE_IN_PROCESS)), "")


def _by_limits(value: float, warning: float, failure: float) -> Status:
    return Status.FAILURE if value >= failure else Status.WARNING if value >= warning else Status.OK


def _check_process(process: ProcessDescription, now_ms: int) -> Iterator[Finding]:
    where = process.name
    if process.answered_by:
        yield Finding(
            "reachable",
            where,
            Status.WARNING,
            f"{process.answered_by} responds at its address {process.address}, so it could not be checked",
            "Give each process an advertised_address of its own, or run doctor on a host that resolves "
            "them to different processes.",
        )
        return
    if process.error:
        yield Finding(
            "reachable",
            where,
            Status.FAILURE,
            f"no answer at {process.address}: {process.error}",
            "Check that it runs, its log, and that this machine can reach its address.",
        )
        return
    yield Finding("reachable", where, Status.OK, f"answers at {process.address}, release {process.version}")
    for cause in process.health_causes:
        status = Status.WARNING if cause.probe == "readiness" else Status.FAILURE
        yield Finding(cause.probe, where, status, cause.reason, cause.action)
    least = COORDINATOR_FILES if where.startswith("coordinator-") else BROKER_FILES
    yield check_open_files(where, process.open_files, process.max_open_files, least)
    if process.disk is not None:
        yield from check_disk(where, process.disk)
    for certificate in process.certificates:
        yield check_certificate(where, certificate, now_ms)


def check_open_files(where: str, used: int, limit: int, least: int) -> Finding:
    """Return the finding about a limit of open files (`-1`: none), with `used` files (`-1`: unknown)."""
    shown = "no limit" if limit < 0 else f"limit {limit}" if used < 0 else f"{used} of {limit} open"
    is_near = limit > 0 and used >= FILES_SHARE * limit
    status = Status.FAILURE if is_near else Status.WARNING if 0 <= limit < least else Status.OK
    action = f"Raise its limit of open files (LimitNOFILE, ulimit -n) to {least} or more."
    return judged("open_files", where, status, shown, action)


def check_disk(where: str, disk: DiskDescription) -> Iterator[Finding]:
    """Yield findings about free space, file system and fsync time."""
    free = f"{bytes_text(disk.free_bytes)} of {bytes_text(disk.total_bytes)} free"
    if disk.free_bytes < max(disk.refuse_below_bytes, 1):
        status = Status.FAILURE
    else:
        is_low = disk.free_bytes < max(disk.resume_above_bytes, round(FREE_SHARE * disk.total_bytes))
        status = Status.WARNING if is_low else Status.OK
    yield judged("disk_space", where, status, free, "Grow the volume, shorten retention, or move partitions away.")
    kind = disk.filesystem
    if kind:
        is_remote = kind.startswith(REMOTE)
        status = Status.FAILURE if is_remote else Status.WARNING if kind in FLEETING else Status.OK
        action = (
            "Use a local disk with ext4 or xfs."
            if is_remote
            else "Mount a volume there: the current data is lost with the container or machine."
        )
        yield judged("filesystem", where, status, kind, action)
    if disk.fsync_us:
        status = _by_limits(disk.fsync_us, FSYNC_WARNING_US, FSYNC_FAILURE_US)
        took = f"{disk.fsync_us / 1000:.1f} ms for a small fsync"
        yield judged("fsync", where, status, took, "Use a faster disk, or one without other writers.")
    if disk.offline_logs:
        yield Finding(
            "offline_logs",
            where,
            Status.FAILURE,
            f"{disk.offline_logs} logs have failed",
            "`headrace broker describe` lists them with the reason; repair the disk and start the broker again.",
        )
    if disk.unclaimed_logs:
        ids = ", ".join(topic_id.hex() for topic_id in disk.unclaimed_topic_ids[:SHOWN_TOPIC_IDS])
        more = len(disk.unclaimed_topic_ids) - SHOWN_TOPIC_IDS
        yield Finding(
            "unclaimed_logs",
            where,
            Status.FAILURE,
            f"{disk.unclaimed_logs} logs are claimed by no key in etcd, of the topic ids {ids}"
            + (f" and {more} more" if more > 0 else ""),
            "`headrace broker describe` lists them. See docs/runbooks/HeadraceUnclaimedLog.md: recover them, or run "
            "`headrace broker delete-unclaimed`, and for ids without a topic `headrace topic delete --unclaimed`.",
        )


def check_certificate(where: str, certificate: CertificateDescription, now_ms: int) -> Finding:
    """Return the finding about the expiry of a certificate."""
    left_ms = certificate.not_after_ms - now_ms
    whose = f"{certificate.use} ({certificate.subject or 'no subject'})"
    day = datetime.fromtimestamp(certificate.not_after_ms / 1000, UTC).date()
    if left_ms <= 0:
        status, shown = Status.FAILURE, f"{whose} has expired, on {day}"
    else:
        status = Status.WARNING if left_ms < CERTIFICATE_WARNING_MS else Status.OK
        shown = f"{whose} ends in {left_ms // 86_400_000} days, on {day}"
    return judged("certificate", where, status, shown, f"Renew {certificate.path}; it is reloaded automatically.")


def _check_versions(reached: Sequence[ProcessDescription]) -> Iterator[Finding]:
    versions = sorted({process.version for process in reached})
    if versions:
        status = Status.FAILURE if not are_close(versions) else Status.WARNING if len(versions) > 1 else Status.OK
        action = (
            "Finish the upgrade: bring all to the same release."
            if are_close(versions)
            else "Bring the older ones up, one minor release at a time: these do not work together."
        )
        yield judged("versions", "cluster", status, ", ".join(versions), action)


def _check_clocks(ahead_ms: Mapping[str, int]) -> Iterator[Finding]:
    """Compare each clock, and this machine's, with the median of all."""
    if not ahead_ms:
        return
    middle = round(statistics.median(ahead_ms.values()))
    for name, ahead in (*ahead_ms.items(), ("this machine", 0)):
        off_ms = ahead - middle
        status = _by_limits(abs(off_ms), CLOCK_WARNING_MS, CLOCK_FAILURE_MS)
        shown = f"{duration_text(abs(off_ms))} {'ahead of' if off_ms > 0 else 'behind'} the others"
        yield judged(
            "clock",
            name,
            status,
            shown if off_ms else "as the others",
            "Synchronise its clock: run chrony or the like.",
        )


def _check_redundancy(processes: Sequence[ProcessDescription]) -> Iterator[Finding]:
    for kind, least, why in (
        ("coordinator", 2, "with one, nothing is elected while it restarts"),
        ("broker", 3, "with fewer, no topic has three replicas"),
    ):
        count = sum(process.name.startswith(f"{kind}-") for process in processes)
        status = Status.OK if count >= least else Status.WARNING
        yield judged(f"{kind}s", "cluster", status, f"{count} registered", f"Run {least} or more: {why}.")


def _check_etcd(reached: Sequence[ProcessDescription], store: str = "") -> Iterator[Finding]:
    """Check each endpoint once; attribute unreachable endpoints to the reporting process. `store` is that of a cluster
    in one process.
    """
    members: dict[str, EtcdMemberDescription] = {}
    for process in reached:
        for member in process.etcd:
            if member.error:
                yield Finding(
                    "etcd_reachable",
                    f"{process.name} to {member.endpoint}",
                    Status.FAILURE,
                    member.error,
                    "Check that etcd runs there and that this process can reach it.",
                )
            else:
                members.setdefault(member.endpoint, member)
    endpoints = {member.endpoint for process in reached for member in process.etcd}
    if endpoints and not store:
        is_odd = len(endpoints) % 2 == 1 and len(endpoints) > 1
        yield judged(
            "etcd_members",
            "etcd",
            Status.OK if is_odd else Status.WARNING,
            f"{len(endpoints)} endpoints",
            "Run three or five members: one cannot fail, and an even number survives no more than one less.",
        )
    for endpoint, member in sorted(members.items()):
        if not store and member.version:
            yield _etcd_version(f"etcd {endpoint}", member.version)
        yield from _check_member(f"etcd {endpoint}", member)


def _check_member(where: str, member: EtcdMemberDescription) -> Iterator[Finding]:
    if not member.has_leader:
        yield Finding(
            "etcd_leader", where, Status.FAILURE, "it has no leader", "Bring a majority of etcd's members back."
        )
    if member.is_learner:
        yield Finding(
            "etcd_learner",
            where,
            Status.WARNING,
            "it is a learner without a vote",
            "Promote it: `etcdctl member promote`.",
        )
    for alarm in member.alarms:
        action = (
            "Compact and defragment etcd, raise --quota-backend-bytes, then `etcdctl alarm disarm`."
            if alarm == "NOSPACE"
            else "Replace the member: its data is corrupt."
        )
        yield Finding("etcd_alarm", where, Status.FAILURE, alarm, action)
    yield from _check_database(where, member)
    status = Status.WARNING if member.answered_us >= ETCD_ANSWER_WARNING_US else Status.OK
    shown = f"answers in {member.answered_us / 1000:.1f} ms"
    yield judged("etcd_latency", where, status, shown, "Look at its disk and network; give etcd a disk of its own.")


def _check_database(where: str, member: EtcdMemberDescription) -> Iterator[Finding]:
    if not member.database_bytes:
        yield Finding(
            "etcd_quota",
            where,
            Status.WARNING,
            "its size and alarms are unknown: it reports them to root only, and has no page /metrics at this port",
            "Serve HTTP there, too (no --listen-client-http-urls), or monitor its `etcd_mvcc_db_total_size_in_bytes`.",
        )
        return
    quota = member.quota_bytes or ETCD_DEFAULT_QUOTA
    share = member.database_bytes / quota
    assumed = "" if member.quota_bytes else " (assumed: it does not report its quota)"
    yield judged(
        "etcd_quota",
        where,
        _by_limits(share, QUOTA_WARNING, QUOTA_FAILURE),
        f"{bytes_text(member.database_bytes)} of {bytes_text(quota)}{assumed}",
        "Let etcd compact by itself (--auto-compaction-retention), defragment it, or raise --quota-backend-bytes.",
    )
    is_large = member.database_bytes >= FRAGMENTED_BYTES and member.database_used_bytes
    if is_large and member.database_used_bytes < FRAGMENTED_SHARE * member.database_bytes:
        yield Finding(
            "etcd_fragmented",
            where,
            Status.WARNING,
            f"{bytes_text(member.database_used_bytes)} of {bytes_text(member.database_bytes)} in use",
            "Defragment this member: `etcdctl defrag`, one member at a time.",
        )


def _etcd_version(where: str, version: str) -> Finding:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return Finding(
            "etcd_version", where, Status.WARNING, version, "Run a released etcd, 3.5.28 or 3.6.9 and later."
        )
    major, minor, patch = (int(part) for part in match.groups())
    first = ETCD_PRODUCTION.get((major, minor))
    if (major, minor) < ETCD_MINIMUM:
        status = Status.FAILURE
    elif (first is not None and patch < first) or (first is None and (major, minor) < max(ETCD_PRODUCTION)):
        status = Status.WARNING
    else:
        status = Status.OK
    return judged("etcd_version", where, status, version, "Upgrade etcd to 3.5.28, 3.6.9 or later.")
