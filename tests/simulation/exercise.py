"""Which checks and faults a run of many seeds has to exercise: an invariant that nothing could break shows nothing.

Checks count each comparison that could have failed, under these names among a run's counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.simulation.group_plan import GROUP_FAULTS
from tests.simulation.history import ANOMALIES
from tests.simulation.network import LATE_PRODUCES
from tests.simulation.plan import COLUMNS_CHANGE, FAULTS, LATER_FAULTS

CHECKED = "checked: "
"""An invariant, in the middle of a run."""
JUDGED = "judged: "
"""An anomaly of the clients' history, in the end."""
FAULT = "fault: "
DRAWN = "drawn: "
"""A fault whose moment came, whether the cluster was one that it may meet or not: the summary shows both."""
INVARIANTS = (*(f"I{number}" for number in range(1, 21)), "H35", "H43", "compaction")
"""I21 is nonmonotonic-send, I22 is aborted-read. H21 is counted and not required: in few drawn seeds anybody leads
uncleanly; a test of its own and scenarios do that."""
CLIENTS = (
    "I1 as answered",
    "I8 as answered",
    "I18 as answered",
    "freshness",
    "high watermark",
    "read to the end",
    "H4 in tables",
    "H26 in tables",
    "H26 in positions",
    "H51",
    "H55",
    "H143",
    "client errors",
    "order of a connection",
)
"""What clients are told, and what their shipped cores make of it."""
ADMINISTRATORS = tuple(f"administrators, {kind}" for kind in ("create", "delete", "configure", "grow", "move"))
"""What administrators were answered, by kind of request."""
FORGOTTEN = "producers forgotten"
COMPRESSED = "compressed batches sent"
LOOPED = "records of loops"
NATIVE = "native calls"
CANCELLED = ("polls cancelled", "reads cancelled", "sends cancelled")
"""By applications, in the middle: only a send that waits for memory or metadata can be."""
FLUSHED_BY_POLICY = "flushes by flush_messages or flush_ms"
SELDOM_FAULTS = (
    "corruption",
    "disk error",
    "disk replaced",
    "durability changes",
    "power in a call",
    "rot",
    "unclean election",
)
"""Drawn and done too seldom to be required: a test of its own asks for each."""
SELDOM_WITH_TABLES = (*SELDOM_FAULTS, "delete records", "volume put back", "partitions added")
ENOUGH_SEEDS = 60
"""This many drawn seeds of at least `FULL_STEPS` exercise everything."""

REQUIRED = (
    *(CHECKED + name for name in (*INVARIANTS, *CLIENTS)),
    *(JUDGED + name for name in (*ANOMALIES, *ADMINISTRATORS, "time look-ups")),
    *(FAULT + name for name in (*FAULTS, *LATER_FAULTS) if name not in SELDOM_FAULTS),
    FORGOTTEN,
    COMPRESSED,
    LATE_PRODUCES,
    LOOPED,
    NATIVE,
    *CANCELLED,
    FAULT + COLUMNS_CHANGE,
    FLUSHED_BY_POLICY,
)


LEAST = {
    "looks at a leader of an older epoch": 5,
    "truncations": 12,
    "log: in_sync_set_shrank": 20,
}
"""How often a hundred drawn seeds have to see each at least: half as often as they did when this was written."""
LEAST_DONE = 0.4
"""The share of the faults drawn that have to be done: the others meet a cluster in which they are not possible."""


REQUIRED_OF_TABLES = (
    CHECKED + "I31",
    CHECKED + "compaction",
    *(FAULT + name for name in (*FAULTS, *LATER_FAULTS) if name not in SELDOM_WITH_TABLES),
    "row writes ok",
    "row writes refused",
    "row writes failed",
    "row writes unknown",
    "row bulk writes ok",
    "row deletions ok",
    "row reads",
    "reads of rows: count",
    "reads of rows: get_many",
    "reads of rows: scan",
    "rows without their second column",
    "row writes that kept a column",
    "changes of rows that were watched",
    "watches that were left",
    "watches when all was well",
    "rows that had expired",
    "replicas purged",
)
"""Of seeds with a table, whose writers are its clients. Its records are not deleted: their rows would be missed."""

GROUPS = (
    "I19",
    "I24",
    "I24 of epochs",
    "I25 of members",
    "I25 of owners",
    "I25 of tenures",
    "I26",
    "I26 of order",
    "I27",
    "I27 of commits",
    "I28",
    "I28 beyond a deletion",
    "I28 of targets",
    "I29",
    "I29 of commits",
    "H63",
    "H66",
    "H69",
    "H70",
    "H71",
)
"""What is compared in the simulation of consumer groups."""
REQUIRED_OF_GROUPS = (*(CHECKED + name for name in GROUPS), *(FAULT + name for name in GROUP_FAULTS))


def never_exercised(counts: Mapping[str, int], required: Iterable[str] = REQUIRED) -> list[str]:
    """Return what sixty seeds must exercise and did not."""
    return [name for name in required if not counts.get(name)]


def too_seldom(counts: Mapping[str, int], seeds: int) -> list[str]:
    """Return what a number of drawn seeds did less often than they have to: such checks show little."""
    found = [name for name, least in LEAST.items() if counts.get(name, 0) < least * seeds // 100]
    drawn, done = (sum(n for name, n in counts.items() if name.startswith(kind)) for kind in (DRAWN, FAULT))
    return found if done >= LEAST_DONE * drawn else [*found, f"{done} of {drawn} faults"]
