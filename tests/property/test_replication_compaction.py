"""Three replicas that compact at different times, under whatever order of events: nothing current is lost, nothing
deleted comes back. The model of `test_replication_log_matching`, with compaction.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.test_replication_log_matching import ReplicationModel, walk
from tests.unit.broker.compacted_replicas import CompactedNode, CompactedReplicas

pytestmark = pytest.mark.no_cover


class CompactionModel(ReplicationModel):
    """Each replica compacts when it likes."""

    replicas_type = CompactedReplicas

    def compact(self, broker: int) -> None:
        node = self.node(broker)
        assert isinstance(node, CompactedNode)
        node.compact()


@given(seed=st.integers(0, 2**32), durable=st.booleans(), minimum=st.sampled_from([1, 2]))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_long_walks_with_compaction(seed: int, durable: bool, minimum: int) -> None:
    """The newest record of each key is on every member; a deleted one is on none once its deletion is gone."""
    chance = random.Random(seed)
    model = CompactionModel()
    walk(
        model, chance, durable=durable, minimum=minimum, steps=250,
        more=[
            (12, lambda: model.compact(chance.randrange(1, 4))),
            (20, lambda: model.produce(chance.randrange(9), 4, -1, 0, 0)),
            (6, lambda: model.calm(set(chance.sample((1, 2, 3), 2)), True)),
            (4, lambda: model.tick(chance.randrange(1, 4), 20_000, {1, 2, 3})),
        ],
    )  # fmt: skip
