"""Replication under simulation: sixty seeds, a lying etcd, all machines without power; and the simulator itself."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from unittest import mock

import pytest
from headrace_broker.core.leadership import Leadership

from tests.simulation.checking import ROOT, counts_of_all, outputs_under_two_hash_seeds, sound
from tests.simulation.exercise import (
    CHECKED,
    LEAST,
    REQUIRED,
    REQUIRED_OF_GROUPS,
    REQUIRED_OF_TABLES,
    SELDOM_FAULTS,
    never_exercised,
    too_seldom,
)
from tests.simulation.plan import Plan
from tests.simulation.simulation import check_same, run, shrink
from tests.simulation.world import SimulationError, World

pytestmark = pytest.mark.timeout(600)  # Five seeds, on a slow machine with other work.


def check(plan):
    return sound(run(plan), "sim")


@pytest.mark.parametrize("first", range(0, 60, 5))
def test_no_seed_breaks_a_promise(first, tmp_path_factory):
    """I1 to I22 and liveness hold over sixty drawn mixes of faults, which exercise every check and every fault."""
    counts = Counter()
    for seed in range(first, first + 5):
        counts.update(check(Plan.draw(seed)).counts)
    total = counts_of_all(tmp_path_factory, "sixty-seeds", first, 12, counts)
    assert total is None or never_exercised(total) + too_seldom(total, 60) == []


def test_what_was_never_exercised_is_named():
    """A check that compared nothing, or a fault that never came, is found in the sum of a run's counts."""
    for required in (REQUIRED, REQUIRED_OF_GROUPS, REQUIRED_OF_TABLES):
        counts = dict.fromkeys(required, 1)
        assert never_exercised(counts, required) == []
        for gone in required:
            assert never_exercised(counts | {gone: 0}, required) == [gone]
            assert never_exercised({name: 1 for name in required if name != gone}, required) == [gone]


def test_what_is_done_too_seldom_is_named():
    """Each by itself, in proportion to the seeds, and a nemesis whose faults hardly ever find their cluster."""
    enough = LEAST | {"drawn: kill": 100, "fault: kill": 90}
    assert too_seldom(enough, 100) == []
    for name, least in LEAST.items():
        assert too_seldom(enough | {name: least - 1}, 100) == [name]
        assert too_seldom(enough | {name: least - 1}, 50) == []
    assert too_seldom(enough | {"fault: kill": 1}, 100) == ["1 of 100 faults"]


def names_in(files):
    """The promises that files of checks can find broken, and those whose comparisons they count."""
    broken, counted = set(), set()
    for file in files:
        for node in ast.walk(ast.parse((ROOT / "tests/simulation" / file).read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(promise), *_]):
                    broken |= {promise} if name in ("SimulationError", "breaks", "_fail") else set()
                    counted |= {promise} if name in ("checked", "_checked", "_check_prefix") else set()
                case ast.BinOp(left=ast.Name(id="CHECKED"), right=ast.Constant(promise)):
                    counted.add(promise)
    return broken, counted


@pytest.mark.parametrize(
    ("checks", "required"),
    [
        ((("invariants.py", "machine.py"), ("promises.py",), ("clients.py",)), REQUIRED),
        ((("group_invariants.py",),), REQUIRED_OF_GROUPS),
    ],
)
def test_every_check_is_counted_and_every_count_required(checks, required):
    """What checks can find broken they count, and sixty seeds have to do each comparison that is counted."""
    everything = set()
    for files in checks:
        broken, counted = names_in(files)
        assert broken - {each for name in counted for each in (name, name.partition(" ")[0])} == set()
        everything |= counted
    assert {CHECKED + name for name in everything - {"H21"}} == {name for name in required if name.startswith(CHECKED)}


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_a_lying_etcd_breaks_nothing(first):
    """I1 to I18 hold where reads are stale, watch events come twice or never, and keepalives lie (C4)."""
    for seed in range(first, first + 5):
        check(Plan.draw(seed, buggy_etcd=True))


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 7])
def test_power_lost_everywhere_loses_nothing(seed):
    """With fsync durability every acknowledged record outlives all machines losing power at once (I16)."""
    plan = Plan(seed, faults=("power all",), fault_period_ms=1_200, producers=(-1, -1), min_insync_replicas=1)
    result = check(plan)
    assert result.counts["fault: power all"] > 0
    assert result.counts["acknowledged"] > 10


@pytest.mark.parametrize("seed", range(5))
def test_corruption_of_a_minority_loses_nothing(seed):
    """A replica whose log rots leaves the in-sync set and is copied anew; no reader gets what rotted (I17, H33)."""
    result = check(Plan(seed, faults=("corruption",), fault_period_ms=1_500, producers=(-1,)))
    assert result.counts["fault: corruption"] > 0
    assert result.counts["logs set aside: corrupt"] > 0


def test_unclean_elections_lose_only_what_was_requested():
    """H21: drawn seeds hardly ever end with a replica that leads uncleanly; these do."""
    checked = 0
    for seed in range(1, 20):
        plan = Plan(seed, faults=("unclean election", "isolate", "pause"), min_insync_replicas=1, fault_period_ms=500)
        checked += check(plan).counts.get("checked: H21", 0)
        if checked > 1:
            return
    raise AssertionError("no leader was elected uncleanly")


def test_moves_in_order_lose_nothing_that_one_replica_acknowledged():
    """H24: stops, drains and moves of leaders under producers with acks=1; leaderships do move, and appends do stop."""
    begun = paused = 0
    for seed in range(6):
        faults = ("stop", "drain", "move leader", "move")
        plan = Plan(seed, faults=faults, fault_period_ms=500, faults_ms=5_000, producers=(1, 1), produce_period_ms=20)
        assert plan.is_orderly
        result = check(plan)
        begun += result.counts["leaderships begun"] - plan.partitions
        paused += result.counts.get("hand-overs that stopped appends", 0)
    assert begun > 8
    assert paused > 2


def test_a_seed_is_one_trace_under_any_hash_seed():
    """The same seed gives the same events in another process whose strings hash differently."""
    code = (
        "from tests.simulation.plan import Plan; from tests.simulation.simulation import run\n"
        "for seed in range(80, 86):\n"
        "    result = run(Plan.draw(seed, steps=800)); print(seed, result.digest, result.steps, result.broken)"
    )
    outputs = outputs_under_two_hash_seeds(code)
    assert outputs[0] == outputs[1]
    assert [line.split()[3:] for line in outputs[0].splitlines()] == [[]] * 6


@pytest.mark.parametrize(
    ("options", "counted"), [((), "acknowledged"), (("--tables",), "row reads"), (("--groups",), "records given")]
)
def test_the_command_runs_seeds_in_two_processes(tmp_path, options, counted):
    """`make sim JOBS=2` gives one summary, and the exit code 0 where nothing broke; so with groups and with tables."""
    output = tmp_path / "summary.json"
    arguments = ["--seeds", "0..5", "--steps", "400", "--jobs", "2", "--output", str(output), *options]
    subprocess.run([sys.executable, "-m", "tests.simulation", *arguments], cwd=ROOT, check=True, timeout=100)
    summary = json.loads(output.read_text())
    assert (summary["seeds"], summary["broken"]) == (6, {})
    assert summary["events"] > 6 * 400
    assert summary["counts"][counted] > 0


def test_faults_that_are_seldom_drawn_are_done():
    """No kind of fault is an option that does nothing: the sixty seeds exercise all others."""
    for name in SELDOM_FAULTS:
        done = 0
        for seed in range(4):
            plan = Plan(seed, steps=600, faults=(name,), fault_period_ms=300)
            if name == "unclean election":  # It needs a replica that lags.
                plan = replace(plan, steps=2_000, faults=(name, "isolate", "pause"), min_insync_replicas=1)
            done += check(plan).counts.get(f"fault: {name}", 0)
            if done:
                break
        assert done, name


def test_a_broken_promise_is_found_and_made_smaller(monkeypatch):
    """A leader that counts what it has not fsynced (H22 undone) is found, and the run that shows it shrinks."""
    advance = Leadership.advance

    def advance_to_the_end(self):
        with mock.patch.object(self._replica, "flushed_offset", self._replica.log_end_offset):
            return advance(self)

    monkeypatch.setattr(Leadership, "advance", advance_to_the_end)
    failed = next(result for seed in range(50) if (result := run(Plan.draw(seed, durability="fsync"))).broken == "I9")
    smaller = shrink(failed)
    assert smaller.broken == failed.broken
    assert (smaller.plan.steps, len(smaller.faults)) < (failed.plan.steps, len(failed.faults))
    assert set(smaller.plan.faults) <= set(failed.plan.faults)


def test_a_paused_process_gets_what_waited_in_order_and_first():
    """What came for a stopped process is delivered in order, before anything newer, once it resumes."""
    world, got = World(0), []
    process, other = world.start_process("a"), world.start_process("b")
    world.pause(process)
    for number in range(3):
        world.after(number + 1, process, "", lambda number=number: got.append(number))
    world.after(10, other, "", lambda: world.resume(process))
    world.after(10, process, "", lambda: got.append("newer"))
    while world.step():
        pass
    assert got == [0, 1, 2, "newer"]


def test_what_is_scheduled_for_a_dead_process_does_not_happen():
    """A life of a node ends with all that was due in it."""
    world, got = World(0), []
    process = world.start_process("a")
    world.after(1, process, "", lambda: got.append(1))
    process.alive = False
    assert not world.step()
    assert got == []


def test_an_error_names_the_promise():
    """The name of a broken promise is what the shrinker keeps."""
    assert SimulationError("I1", "gone").name == "I1"


def test_rows_put_at_once_into_a_topic_made_anew_are_of_its_life():
    """The producer of a table may know of the new topic before the table does (seed 5289 with a table)."""
    check(Plan.draw(5289, tables=True))


def test_a_replica_that_is_behind_a_compaction_answers_no_read():
    """It has a row as it was before records that were compacted away (seed 6362 with a table)."""
    check(Plan.draw(6362, tables=True))


def test_a_leader_that_was_replaced_answers_no_read():
    """It is cut off from etcd, and another one has written (seed 42522 with a table)."""
    check(Plan.draw(42522, tables=True))


def test_a_leader_decides_by_no_record_that_it_had_to_truncate() -> None:
    """It was replaced before they were committed, and leads again (seed 50553 with a table)."""
    check(Plan.draw(50553, tables=True))


def test_records_before_the_log_start_may_be_compacted_with_those_after_it() -> None:
    """The broker was opened after a deletion of the first records (seed 310121)."""
    check(Plan.draw(310121))


def test_an_administrator_elects_a_sound_replica_after_a_corrupt_one() -> None:
    """The only live replica has a corrupt log and leaves at once; a sound one returns (seed 45501 with a table)."""
    check(Plan.draw(45501, tables=True))


def test_a_write_that_may_have_been_applied_is_not_reported_as_one_that_was_not() -> None:
    """Its answer is lost, a later try is refused, and then no server answers (seed 10052 with a table)."""
    check(Plan.draw(10052, tables=True))


def test_a_purge_does_not_wait_for_the_garbage_collector() -> None:
    """A read that a client has left was in use until it ran, at any time (seed 500200 with a table)."""
    plan = Plan.draw(500200, tables=True)
    check_same(check(plan), run(plan))


def test_what_expires_does_not_come_back():
    """I31 in tables whose columns expire and are removed, in storms that take replicas away."""
    absent = 0
    for seed in range(4):
        faults = ("kill", "isolate", "pause", "move leader")
        plan = replace(Plan(seed, faults=faults, fault_period_ms=500, produce_period_ms=20).with_table(), expires=True)
        absent += check(plan).counts.get("rows that had expired", 0)
    assert absent > 5


def test_purged_rows_do_not_come_back():
    """I31 and I30 while replicas that are killed and cut off miss a purge, copy the log anew, and lead."""
    purged = missed = 0
    for seed in range(4):
        faults = ("kill", "isolate", "pause", "move leader")
        plan = replace(Plan(seed, faults=faults, fault_period_ms=1_500, produce_period_ms=20).with_table(), purges=True)
        counts = check(plan).counts
        purged, missed = purged + counts["replicas purged"], missed + counts.get("replicas not purged", 0)
    assert purged > 20
    assert missed > 0


def test_a_mirror_is_its_source_until_it_is_promoted():
    """I33 with two copiers, in storms that move leaderships and truncate logs; what both sides append afterwards."""
    counts = Counter()
    for seed in range(4):
        faults = ("kill", "isolate", "cut link", "move leader")
        plan = Plan(seed, faults=faults, fault_period_ms=500, produce_period_ms=20, producers=(-1, -1)).with_mirror()
        counts.update(check(plan).counts)
    assert counts["copies acknowledged"] > 30
    assert counts["copies refused: elsewhere"] > 20
    assert counts["copies that stay"] > 50
    assert counts["copies failed: INVALID_REQUEST"] > 10
    assert counts["sends failed, fail: READ_ONLY_TOPIC"] > 10
    assert counts["acknowledged"] > 50
    assert counts["leaderships begun"] > 4
