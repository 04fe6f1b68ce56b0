"""What `headrace-broker drain` waits for, and what it does not."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from headrace_broker.drain import Remainder, left_to_hand_over
from headrace_server.metadata_view import PartitionEntry
from headrace_server.partition_state import PartitionState, Replica


class View:
    """One partition `clicks-0` as brokers and coordinators see it; broker n is in session n."""

    def __init__(self, state: PartitionState, *, live: Collection[int], draining: Collection[int] = ()) -> None:
        self.topics = {"clicks": SimpleNamespace(name="clicks", topic_id=b"t")}
        self.brokers = dict.fromkeys(live)
        self._partition = PartitionEntry(b"t", 0, state, 1)  # type: ignore[arg-type]
        self._draining = draining

    def partitions(self, _: bytes) -> list[PartitionEntry]:
        return [self._partition]

    def is_draining(self, broker_id: int) -> bool:
        return broker_id in self._draining


def remainder(leader: int, in_sync: Collection[int], *, minimum: int = 2, **view: Any) -> Remainder:
    """What speaks against stopping broker 1, of three replicas."""
    entries = tuple(Replica(each, each) for each in in_sync)
    state = PartitionState((1, 2, 3), Replica(leader, leader), 1, entries, min_insync_replicas=minimum)
    return left_to_hand_over(View(state, **view), 1)  # type: ignore[arg-type]


def test_a_leadership_goes_where_it_can() -> None:
    """It waits until another broker leads, if another one is in sync and stays."""
    assert remainder(1, (1, 2, 3), live=(1, 2, 3)).led == ("clicks-0",)
    assert not remainder(2, (1, 2, 3), live=(1, 2, 3))
    assert not remainder(1, (1, 2, 3), live=(1, 2, 3), draining=(2, 3))
    assert not remainder(1, (1,), live=(1,))


def test_it_waits_for_a_replica_that_catches_up() -> None:
    """Only where too few would be in sync without it, and not for one that is away or stops."""
    assert remainder(2, (1, 2), live=(1, 2, 3)).needed == ("clicks-0",)
    assert not remainder(2, (1, 2), live=(1, 2, 3), minimum=1)
    assert not remainder(2, (1, 2), live=(1, 2))
    assert not remainder(2, (1, 2), live=(1, 2, 3), draining=(3,))
    assert not remainder(2, (2,), live=(1, 2, 3)), "a broker that is not in sync itself is not needed"


def test_the_sentence_names_some_partitions() -> None:
    """Five, then a count."""
    text = str(Remainder(tuple(f"t-{number}" for number in range(7)), ("u-0",)))
    assert text == "it still leads t-0, t-1, t-2, t-3, t-4 and 2 more and too few replicas would be in sync of u-0"
