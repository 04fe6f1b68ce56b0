"""The health of a consumer, for probes: `Consumer.health`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """Whether a consumer can work, fit for a probe."""

    healthy: bool
    """False: see `problem`."""
    problem: str
    """What is wrong, or empty."""
    assigned: int
    """Partitions that it reads."""
    since_last_answer_ms: int
    """Time since a broker last responded to a fetch."""
    ready: bool = True
    """Of a group: whether it is a member whose last heartbeat is within the session timeout."""
    notices: tuple[str, ...] = ()
    """Of a group: problems that a restart of this process would not solve."""
    since_last_heartbeat_ms: int | None = None
    """Of a group: time since the last heartbeat with a response was sent; `None` without a group."""
    since_last_poll_ms: int | None = None
    """Of a group: time since the last poll; 0 while the application waits in one; `None` without a group."""
    coordinator_reachable: bool = True
    etcd_reachable: bool = True
    """Whether the coordinators report that they reach etcd."""
