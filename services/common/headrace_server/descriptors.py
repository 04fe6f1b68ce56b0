"""Limit of open files: raised at the start, and divided so that a flood of connections cannot exhaust log files.

gRPC accepts connections in its own C core. A reserve of open descriptors would not help the storage, the lease or etcd,
because the listener would take each one that is released. Therefore the listeners are limited, and the rest is
reserved.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Annotated, NamedTuple

import structlog
from pydantic import Field

log = structlog.get_logger(__name__)

MaxConnections = Annotated[
    int,
    Field(
        ge=0,
        le=1_000_000,
        description="Maximum client connections, with those of the native protocol at most a quarter of the limit of "
        "open files; further ones are closed, and one address keeps at most half. `0` means 10,000, or that quarter "
        "if it is less.",
    ),
]
"""Type of the setting that both services have."""

MOST_OF_MACOS = 10_240
"""Limit that macOS accepts (OPEN_MAX) though it reports none."""
MOST = 1 << 20
"""Maximum to which the limit is raised, also used if there is no limit."""
KEPT = 192
"""Reserve for etcd, the lease, peers, certificates, HTTP, logs, short-lived files, and excess segment files."""
MOST_CLIENTS, MOST_PEERS, MOST_SEGMENT_FILES = 10_000, 1_024, 65_536
LOW = 4_096
"""Below this limit a broker opens and closes segment files often; 65,536 is recommended for production."""


class DescriptorShares(NamedTuple):
    """Maximum number of open descriptors by use."""

    clients: int
    """Connections to the gRPC listener for clients."""
    natives: int
    """Connections of the native protocol."""
    peers: int
    """Connections to the gRPC listener for brokers and coordinators."""
    followers: int
    """Connections to the listener for followers."""
    segment_files: int
    """Segment files, independent of the number of partitions."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the new limit, at most `MOST`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        for limit in (wanted, min(wanted, MOST_OF_MACOS)):
            with contextlib.suppress(ValueError, OSError):  # The kernel's own limit of a process is lower.
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return limit
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def share_out(limit: int, *, max_connections: int = 0, native_connections: int = 0) -> DescriptorShares:
    """Divide `limit` descriptors. `max_connections` replaces the share of clients; `0` keeps the default."""
    natives = min(native_connections, limit // 8)
    clients = min(max_connections or MOST_CLIENTS, limit // 4 - natives)
    peers = followers = min(MOST_PEERS, limit // 32)
    left = limit - KEPT - clients - natives - peers - followers
    return DescriptorShares(clients, natives, peers, followers, max(min(left, MOST_SEGMENT_FILES), 1))


def report(limit: int, shares: DescriptorShares) -> None:
    """Log the limit, and warn if it is low."""
    if limit < LOW:
        log.warning(
            "open_files_limit_low", limit=limit, **shares._asdict(),
            advice="raise the hard limit (LimitNOFILE, ulimit -Hn) to 65536 or more",
        )  # fmt: skip
    else:
        log.info("open_files_limit", limit=limit, **shares._asdict())
