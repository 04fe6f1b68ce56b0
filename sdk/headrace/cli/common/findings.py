"""Findings of checks of the cluster or a host, for `cluster health` and `doctor`. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.cli.common.rendering import JsonValue


class Status(StrEnum):
    """Severity of a finding, the most severe first."""

    FAILURE = "failure"
    """Data or availability is lost now or at the next failure."""
    WARNING = "warning"
    """The problem will become a failure."""
    NOTICE = "notice"
    """An administrator caused it (a move, a drain), or it only costs time."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one check."""

    check: str
    """Constant name of the check, for programs."""
    where: str
    """Process, host or endpoint, or `cluster`."""
    status: Status
    found: str
    """Observation, in a few words or one sentence."""
    action: str = ""
    """Next step, in one sentence; empty for `OK`."""

    def document(self) -> dict[str, JsonValue]:
        """Return the finding for programs."""
        return {
            "status": self.status.value,
            "check": self.check,
            "where": self.where,
            "found": self.found,
            "action": self.action,
        }


def judged(check: str, where: str, status: Status, found: str, action: str) -> Finding:
    """Return a finding, without its action if it is `OK`."""
    return Finding(check, where, status, found, "" if status is Status.OK else action)
