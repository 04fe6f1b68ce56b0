"""What an entry of the mutation ledger is: one rule taken out of the shipped code, and who must notice (PROTOCOL T7).

An entry is data. `apply` puts its patch onto a copy of the sources; `run` lets its killer loose on that copy. The
entries stand in the `ledger_*` modules beside this one, by the part of the code that they break.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BROKER = "services/broker/headrace_broker"
SERVER = "services/common/headrace_server"
CLIENT = "sdk/headrace/client"
LOG_PACKAGE = "sdk/headrace/log"
COORDINATOR = "services/coordinator/headrace_coordinator"


class StaleEntryError(Exception):
    """The code that an entry patches is not what it was: the entry must be brought up to date."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Seeds of the simulator, from 1 on, until one breaks."""

    seeds: int
    """It must break within so many."""
    groups: bool = False
    """Of the simulation of consumer groups."""
    durability: str = "mixed"
    buggy_etcd: bool = False
    changes: Mapping[str, object] = field(default_factory=dict)
    """Fields of each drawn `Plan` that are replaced: what brings the hazard about more often."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A directed schedule: a function in `tests/scenario`, given as `file.py::function`."""

    test: str


@dataclass(frozen=True, slots=True)
class Test:
    """A fast test, by its pytest id, where the simulator and scenarios do not see the rule, or late; `why` says so."""

    __test__ = False

    test: str
    why: str


Killer = Simulation | Scenario | Test


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule, broken."""

    id: str
    rule: str
    """Its number in docs/protocols/rules.md."""
    file: str
    old: str
    """Stands in the file exactly once."""
    new: str
    breaks: str
    """What the patched code does, in one sentence."""
    killer: Killer
    also: tuple[tuple[str, str, str], ...] = ()
    """Further patches (file, old, new), where another line of defence has to go as well."""
    second_line: str = ""
    """Why the rule alone is not seen: what else stops it, which `also` takes out."""

    def patches(self) -> tuple[tuple[str, str, str], ...]:
        """All (file, old, new)."""
        return (self.file, self.old, self.new), *self.also


def patched(mutant: Mutant, root: Path) -> dict[str, str]:
    """Return the texts of the files that a mutant changes, by path from `root`.

    Raises:
        StaleEntryError: an old text is not there exactly once, or the patch changes nothing.
    """
    texts: dict[str, str] = {}
    for file, old, new in mutant.patches():
        text = texts.get(file)
        if text is None:
            text = (root / file).read_text("utf-8")
        found = text.count(old)
        if found != 1:
            raise StaleEntryError(f"{mutant.id}: its old text stands {found} times in {file}:\n{old}")
        if old == new:
            raise StaleEntryError(f"{mutant.id}: the patch of {file} changes nothing")
        texts[file] = text.replace(old, new)
    for file, text in texts.items():
        try:
            compile(text, file, "exec")
        except SyntaxError as error:
            raise StaleEntryError(f"{mutant.id}: {file} is no Python any more: {error}") from error
    return texts


def apply(mutant: Mutant, root: Path) -> None:
    """Patch the copy of the sources under `root`; raises as `patched`."""
    for file, text in patched(mutant, root).items():
        path = root / file
        path.unlink()  # It may be a link.
        path.write_text(text, "utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
