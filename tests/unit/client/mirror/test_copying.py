"""Copies of one partition, between sides that are dictionaries: what they tell of their progress."""

import asyncio
from types import SimpleNamespace

import pytest
from headrace.client.admin.partition_calls import CopyResult, Fetched
from headrace.client.mirror.copying import CopyLimits, PartitionCopy
from headrace.wire.errors import Outcome, TimedOutError


class FakeSide:
    """Returns the answers in turn; raises those that are errors."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def run(self, operation):
        if not self.answers:
            await asyncio.sleep(3_600)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


CALLS = SimpleNamespace(
    topic="clicks", fetch=lambda *arguments, **more: "fetch", append=lambda *arguments, **more: "append"
)


def test_a_copy_that_has_everything_is_well():
    """It tells so without an append: after an error nothing else would, until the source has new records."""
    source = FakeSide(Fetched(b"", 5, 0, 0, 1), TimedOutError("late", outcome=Outcome.UNKNOWN))
    target = FakeSide(CopyResult(5, 0, None))
    told = []
    one = PartitionCopy(0, (source, CALLS), (target, CALLS), CopyLimits(), lambda state: told.append(state.lag))
    with pytest.raises(TimedOutError):
        asyncio.run(one.run())
    assert told == [0]
