"""The mutation ledger fits the code as it is now; `make mutants` runs it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.ledger import LEDGER
from tests.mutation.mutants import Mutant, Scenario, Simulation, StaleEntryError, Test, apply, patched
from tests.mutation.run import TESTS

ROOT = Path(__file__).resolve().parents[2]
RULE = re.compile(r"^\| ([ACHI]\d+) \|", re.MULTILINE)
PROTOCOLS = ROOT / "docs/protocols"


@pytest.mark.parametrize("mutant", LEDGER, ids=lambda mutant: mutant.id)
def test_every_entry_applies(mutant: Mutant) -> None:
    """Each old text stands in its file exactly once, and what replaces it is Python."""
    assert patched(mutant, ROOT)


def test_every_rule_is_explained() -> None:
    """Entries break rules that docs/protocols/rules.md has, at least forty of them in all."""
    explained = set(RULE.findall((PROTOCOLS / "rules.md").read_text("utf-8")))
    assert {mutant.rule for mutant in LEDGER} <= explained
    assert len(LEDGER) >= 40


def test_every_rule_has_a_mutant_or_a_sentence() -> None:
    """Each rule of docs/protocols/rules.md is broken by an entry, or mutants.md says why none can; never both."""
    rules = set(RULE.findall((PROTOCOLS / "rules.md").read_text("utf-8")))
    broken = {mutant.rule for mutant in LEDGER}
    excused = set(RULE.findall((PROTOCOLS / "mutants.md").read_text("utf-8")))
    assert sorted(rules - broken - excused) == []
    assert sorted((excused & broken) | (excused - rules)) == []


def test_entries_have_names_of_their_own() -> None:
    """An id names one entry; no two entries patch the same way."""
    assert [each for each, count in Counter(mutant.id for mutant in LEDGER).items() if count > 1] == []
    assert [each for each, count in Counter(mutant.patches() for mutant in LEDGER).items() if count > 1] == []


def test_every_killer_exists() -> None:
    """Scenarios and tests that entries name are there, a seed limit is stated, and a plain test says why it is one."""
    for mutant in LEDGER:
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
    """Whether it does; parameters are not named, since a changed one would be noticed by `make mutants` alone."""
    file, _, name = test.partition("::")
    return f"def {name}(" in (folder / file).read_text("utf-8")


def test_a_stale_entry_is_refused(tmp_path: Path) -> None:
    """Where the old text is gone, or stands twice, nothing is written."""
    file = tmp_path / "code.py"
    file.write_text("a = 1\nb = 2\nb = 2\n", "utf-8")
    for old in ("c = 3", "b = 2"):
        mutant = Mutant("stale", "H1", "code.py", old, "pass", "Nothing.", Simulation(1))
        with pytest.raises(StaleEntryError, match="stale: its old text stands"):
            apply(mutant, tmp_path)
    slip = Mutant("slip", "H1", "code.py", "a = 1", "a = (", "Nothing.", Simulation(1))
    with pytest.raises(StaleEntryError, match="no Python"):
        apply(slip, tmp_path)
    assert file.read_text("utf-8") == "a = 1\nb = 2\nb = 2\n"


def test_patches_of_one_file_add_up(tmp_path: Path) -> None:
    """An entry may patch several places of one file, and others beside it."""
    (tmp_path / "one.py").write_text("a = 1\nb = 2\n", "utf-8")
    (tmp_path / "two.py").write_text("c = 3\n", "utf-8")
    also = (("one.py", "b = 2", "b = 3"), ("two.py", "c = 3", "c = 4"))
    mutant = Mutant("several", "H1", "one.py", "a = 1", "a = 2", "Nothing.", Simulation(1), also=also)
    apply(mutant, tmp_path)
    assert (tmp_path / "one.py").read_text("utf-8") == "a = 2\nb = 3\n"
    assert (tmp_path / "two.py").read_text("utf-8") == "c = 4\n"
