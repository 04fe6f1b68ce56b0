"""What can go wrong with a cluster on this machine. Every message names the part and what to do."""

from headrace.wire.errors import HeadraceError


class PartStartError(HeadraceError):
    """A part ended or was not ready in time; the message has the end of its log."""


class PortInUseError(HeadraceError):
    """A fixed port is taken; the message names port and part."""


class ClusterRunningError(HeadraceError):
    """A cluster runs on this data directory already."""


class ClusterNotStoppingError(HeadraceError):
    """The owner of a cluster did not end when it was asked to."""


class ClusterNotHealthyError(HeadraceError):
    """All parts run, but they did not find each other in time."""
