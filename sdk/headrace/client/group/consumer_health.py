"""Health of a consumer, for probes: `Consumer.health`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """Whether a consumer can work, in a form suitable for a probe."""

    healthy: bool
    """Whether the consumer works; if not, see `problem`."""
    problem: str
    """Description of the problem, or empty."""
    assigned: int
    """Number of partitions that it reads."""
    since_last_answer_ms: int
    """Time since a broker last responded to a fetch."""
    ready: bool = True
    """In a group: whether it is a member whose last heartbeat is within the session timeout."""
    notices: tuple[str, ...] = ()
    """In a group: problems that a restart of this process would not solve."""
    since_last_heartbeat_ms: int | None = None
    """In a group: time since the last heartbeat with a response was sent; `None` without a group."""
    since_last_poll_ms: int | None = None
    """In a group: time since the last poll; 0 while the application waits in one; `None` without a group."""
    coordinator_reachable: bool = True
    etcd_reachable: bool = True
    """Whether the coordinators report that they reach etcd."""
