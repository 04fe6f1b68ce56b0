"""Replicas for brokers that have less than their share, such as a new one: which moves the controller starts next.

Pure. Stateless and level-triggered: a new controller continues from the numbers of replicas. A broker receives while it
has less than `SHARE` of the mean, so that small differences move nothing; then it gets replicas from brokers with at
least two more (`headrace.placement.moves`), by the placement policy of each topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace.placement.moves import PlanBroker, PlannedMove, PlanPartition, plan_fill

SHARE = 0.9
"""Part of the mean number of replicas below which a broker receives more."""
MAX_FILL_MOVES = 10
"""Moves in progress above which no more are started; those of administrators count."""


def brokers_below_share(held: Mapping[int, int], receivers: Sequence[int]) -> list[int]:
    """Return those of `receivers` that get replicas; `held` are the numbers of replicas by broker, absent for none."""
    mean = sum(held.get(each, 0) for each in receivers) / max(1, len(receivers))
    return [each for each in receivers if held.get(each, 0) < SHARE * mean]


def next_fill(partitions: Sequence[PlanPartition], brokers: Sequence[PlanBroker]) -> list[PlannedMove]:
    """Return the moves to start now: none while `MAX_FILL_MOVES` partitions are moving.

    `brokers` are all with replicas, and those that may receive some.
    """
    moving = sum(each.is_moving for each in partitions)
    held = Counter(broker_id for each in partitions for broker_id in each.replicas)
    receivers = brokers_below_share(held, [each.broker_id for each in brokers if each.receives])
    return plan_fill(partitions, brokers, receivers, MAX_FILL_MOVES - moving) if receivers else []
