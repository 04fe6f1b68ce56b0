"""How a consumer is, for probes: `Consumer.health`."""

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
    """How long ago a broker last answered a fetch."""
    ready: bool = True
    """Of a group: whether it is a member that a coordinator has heard of within the session timeout."""
    notices: tuple[str, ...] = ()
    """Of a group: problems that a restart of this process would not solve."""
    since_last_heartbeat_ms: int | None = None
    """Of a group: how long ago the last heartbeat that was answered was sent; None: without a group."""
    since_last_poll_ms: int | None = None
    """Of a group: how long the application has asked for nothing; 0 while it waits. None: without a group."""
    coordinator_reachable: bool = True
    etcd_reachable: bool = True
    """Whether the coordinators say that they reach etcd."""
