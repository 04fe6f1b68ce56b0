"""Which checks and faults a run of many seeds has to exercise: an invariant that nothing could break shows nothing.

Checks count each comparison that could have failed, under these names among a run's counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.history import ANOMALIES
from tests.simulation.plan import FAULTS, LATER_FAULTS

CHECKED = "checked: "
"""An invariant, in the middle of a run."""
JUDGED = "judged: "
"""An anomaly of the clients' history, in the end."""
FAULT = "fault: "
INVARIANTS = (*(f"I{number}" for number in range(1, 21)), "H35", "H43")
"""I21 is nonmonotonic-send, I22 is aborted-read. H21 is counted and not required: in few drawn seeds anybody leads
uncleanly; a test of its own and scenarios do that."""
SELDOM_FAULTS = (
    "damage",
    "disk error",
    "disk replaced",
    "durability changes",
    "power in a call",
    "unclean election",
)
"""Drawn and done too seldom to be required: tests of their own ask for each."""
ENOUGH_SEEDS = 100
FULL_STEPS = 2_000
"""So many drawn seeds of at least this length exercise everything."""

REQUIRED = (
    *(CHECKED + name for name in INVARIANTS),
    *(JUDGED + name for name in ANOMALIES),
    *(FAULT + name for name in (*FAULTS, *LATER_FAULTS) if name not in SELDOM_FAULTS),
)


def never_exercised(counts: Mapping[str, int]) -> list[str]:
    """Return what a hundred seeds must exercise and did not."""
    return [name for name in REQUIRED if not counts.get(name)]
