"""A leader appends nothing under the producer id of another user, however many batches a request has."""

import pytest
from headrace.wire.errors import NotAuthorizedError
from headrace_server.identity.gate import set_access
from headrace_server.identity.producer_owners import place_producer

from tests.unit.broker.test_broker_runtime import batch, leading_partition
from tests.unit.common.identity.test_gate import Known


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("epoch", [0, 2**31 - 1])
async def test_batches_of_another_users_producer_are_refused(tmp_path, count, epoch):
    """Neither as the next of its sequence, nor in an epoch that would fence it; alone, in a run, or behind own ones."""
    known = Known()
    ada, bob = known.access(known.user("ada")), known.access(known.user("bob"))
    hers, _ = place_producer(ada.producer_tag, 4711)
    his, _ = place_producer(bob.producer_tag, 4711)

    def batches(producer_id, first, epoch=0):
        return [batch(b"%d" % number, producer=(producer_id, epoch, number)) for number in range(first, first + count)]

    async with leading_partition(tmp_path) as partition:

        async def append(access, *parts):
            set_access(access)
            return await partition.appender.append([each for part in parts for each in part], -1, committed=False)

        assert (await append(ada, batches(hers, 0))).error is None
        forged = batches(hers, 0 if epoch else count, epoch)
        refused = await append(bob, forged)
        assert isinstance(refused.error, NotAuthorizedError)
        assert partition.replica.log_end_offset == count
        refused = await append(bob, batches(his, 0), forged)
        assert isinstance(refused.error, NotAuthorizedError)
        assert len(refused.base_offsets) == count
        assert partition.replica.log_end_offset == 2 * count
        assert (await append(ada, batches(hers, count))).error is None
