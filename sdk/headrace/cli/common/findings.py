"""What a check of the cluster or a host found, for `cluster health` and `doctor`. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from headrace.cli.common.rendering import JsonValue


class Status(StrEnum):
    """How bad a finding is, the gravest first."""

    FAILURE = "failure"
    """Loses data or availability now or at the next failure."""
    WARNING = "warning"
    """Will become a failure."""
    NOTICE = "notice"
    """An administrator caused it (a move, a drain), or it costs no more than time."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """A constant word, for programs."""
    where: str
    """The process, host or endpoint, or `cluster`."""
    status: Status
    found: str
    """What is so, in a few words or one sentence."""
    action: str = ""
    """The next step, in one sentence; empty for `OK`."""

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
