"""The limit of open files: raised at the start, and shared out so that a flood of connections leaves the log its files.

gRPC accepts connections in its own C core, where a reserve of descriptors that this process opened could not be handed
to the storage, the lease or etcd: whatever it gave up the listener would take. So the listeners are bounded instead,
and what they leave is kept back.
"""

from __future__ import annotations

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
        description="Connections of clients at once, at most a quarter of the limit of open files; others are "
        "closed, and one address keeps at most half. 0: 10,000, or that quarter.",
    ),
]
"""The setting that both services have."""

MOST = 1 << 20
"""The limit is raised to this at most, and shared out as if it were this where there is none."""
KEPT = 192
"""For etcd, the lease, peers, certificates, HTTP, logs, files that are open for a moment, and segment files that exceed
their share.
"""
MOST_CLIENTS, MOST_PEERS, MOST_SEGMENT_FILES = 10_000, 1_024, 65_536
LOW = 4_096
"""Below this a broker opens and closes segment files often; production wants 65,536."""


class DescriptorShares(NamedTuple):
    """What a process may open at once."""

    clients: int
    """Connections to the gRPC listener for clients."""
    natives: int
    """Connections of the native protocol."""
    peers: int
    """Connections to the listener for brokers and coordinators."""
    segment_files: int
    """Files of segments, whatever the number of partitions."""


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; the limit now, `MOST` where there is none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def share_out(limit: int, *, max_connections: int = 0, native_connections: int = 0) -> DescriptorShares:
    """Share `limit` descriptors out. `max_connections` replaces the share of clients; 0 keeps it."""
    clients = min(max_connections or MOST_CLIENTS, limit // 4)
    natives = min(native_connections, limit // 4)
    peers = min(MOST_PEERS, limit // 16)
    left = limit - KEPT - clients - natives - peers
    return DescriptorShares(clients, natives, peers, max(min(left, MOST_SEGMENT_FILES), 1))


def report(limit: int, shares: DescriptorShares) -> None:
    """Log the limit, and warn if it is low."""
    if limit < LOW:
        log.warning(
            "open_files_limit_low", limit=limit, **shares._asdict(),
            advice="raise the hard limit (LimitNOFILE, ulimit -Hn) to 65536 or more",
        )  # fmt: skip
    else:
        log.info("open_files_limit", limit=limit, **shares._asdict())
