"""Errors of a cluster on this machine. Every message names the part and the next step."""

from headrace.wire.errors import HeadraceError


class PartStartError(HeadraceError):
    """A part ended or was not ready in time; the message has the end of its log."""


class PortInUseError(HeadraceError):
    """A fixed port is in use; the message names port and part."""


class OtherKindError(HeadraceError):
    """The directory holds a cluster in one process, or of several, and the other kind was asked for."""


class ClusterRunningError(HeadraceError):
    """Another cluster runs on this data directory."""


class ForeignDirectoryError(HeadraceError):
    """The directory has files and has not been a cluster's."""


class ClusterNotStoppingError(HeadraceError):
    """The owner of a cluster did not exit after the stop request."""


class ClusterNotHealthyError(HeadraceError):
    """All parts run, but they did not discover each other in time."""
