"""The mutation catalogue fits the code as it is now; `make mutants` runs it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.catalogue import CATALOGUE
from tests.mutation.mutants import Mutant, Scenario, Simulation, Test, patched, read_sources
from tests.mutation.run import TESTS

ROOT = Path(__file__).resolve().parents[2]
RULE = re.compile(r"^\| ([ACHI]\d+) \|", re.MULTILINE)
PROTOCOLS = ROOT / "docs/protocols"
BROKEN = {rule for mutant in CATALOGUE for rule in mutant.rules.split()}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Return the product's modules, read once."""
    return read_sources(ROOT)


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.id)
def test_every_entry_applies(mutant: Mutant, sources: dict[str, str]) -> None:
    """Each place and each pattern exists exactly once, and the edited module is Python."""
    assert patched(mutant, sources)


def test_every_rule_is_explained() -> None:
    """Entries break rules that docs/protocols/rules.md has."""
    assert set(RULE.findall((PROTOCOLS / "rules.md").read_text("utf-8"))) >= BROKEN
    assert all(mutant.rules for mutant in CATALOGUE)


def test_every_rule_has_a_mutant_or_a_sentence() -> None:
    """Each rule of docs/protocols/rules.md is broken by an entry, or mutants.md says why none can; never both."""
    rules = set(RULE.findall((PROTOCOLS / "rules.md").read_text("utf-8")))
    excused = set(RULE.findall((PROTOCOLS / "mutants.md").read_text("utf-8")))
    assert sorted(rules - BROKEN - excused) == []
    assert sorted((excused & BROKEN) | (excused - rules)) == []


def test_entries_have_names_of_their_own() -> None:
    """An id names one entry; no two entries make the same edits."""
    assert [name for name, count in Counter(mutant.id for mutant in CATALOGUE).items() if count > 1] == []
    assert [edits for edits, count in Counter(mutant.edits() for mutant in CATALOGUE).items() if count > 1] == []


def test_every_killer_exists() -> None:
    """Scenarios and tests that entries name exist, a seed limit is stated, and a plain test has its reason."""
    for mutant in CATALOGUE:
        match mutant.killer:
            case Simulation(seeds):
                assert 1 <= seeds <= 1_000, mutant.id
            case Scenario(test):
                assert _defines(ROOT / "tests/scenario", test), mutant.id
            case Test(test, why):
                assert test.startswith(tuple(f"{folder}/" for folder in TESTS)), f"{mutant.id}: {test} is not copied"
                assert _defines(ROOT, test), mutant.id
                assert why, mutant.id
        assert bool(mutant.also) == bool(mutant.second_line), mutant.id


def _defines(folder: Path, test: str) -> bool:
    """Whether it does; entries name no parameters: only `make mutants` would notice a changed one."""
    file, _, name = test.partition("::")
    return f"def {name}(" in (folder / file).read_text("utf-8")
