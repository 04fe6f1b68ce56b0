"""A fetch that waited for records or for its turn is checked again before it is answered."""

import asyncio

import pytest
from headrace.v1 import broker_pb2
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError
from headrace_broker.rpc.fetch import FetchHandler, _check_rights, _Wanted
from headrace_server.caller_turns import note_call
from headrace_server.calls import CALLER
from headrace_server.identity.gate import set_access

from tests.unit.common.identity.test_gate import KEYS, Known


@pytest.fixture
def known():
    return Known()


def wanted(topic):
    """Return a partition of a fetch that has found nothing yet."""
    return _Wanted(broker_pb2.PartitionFetch(), -1, topic, broker_pb2.PartitionFetchResult(), [])


def test_a_fetch_that_waited_is_checked_again(known):
    """Its API key was deleted meanwhile: it ends as a whole."""
    set_access(known.access(known.user("ada")))
    known.grant("ada", "reader", "topic:t")
    _check_rights([wanted("t")])
    known.keys.write({KEYS.user("ada"): None})
    with pytest.raises(UnauthenticatedError, match="deleted"):
        _check_rights([wanted("t")])


def test_a_fetch_that_waited_loses_the_topics_of_lost_grants(known):
    """The others are answered."""
    set_access(known.access(known.user("ada")))
    kept, lost = (known.grant("ada", "reader", f"topic:{name}") for name in ("kept", "lost"))
    known.keys.write({lost: None})
    partitions = [wanted("kept"), wanted("lost")]
    _check_rights(partitions)
    assert partitions[0].error is None
    assert isinstance(partitions[1].error, NotAuthorizedError)
    assert kept in known.keys.key_values


class ManyBytes(FetchHandler):
    """A handler that has found as many bytes as the greedy user may have in many seconds."""

    def __init__(self):
        super().__init__(None, None, None, None)

    async def _search(self, *_):
        return 1 << 30, 0.0, 0


@pytest.mark.parametrize("others", [True, False])
async def test_a_fetch_of_a_caller_that_uses_much_waits_for_its_turn(known, others):
    """In which its API key is deleted. Without other callers it does not wait."""
    set_access(known.access(known.user("ada")))
    known.grant("ada", "reader", "topic:t")
    CALLER.set("user ada")
    for caller in ("quiet", "user ada") if others else ("user ada",):
        note_call(caller)
    fetch = asyncio.create_task(ManyBytes()._find([wanted("t")], broker_pb2.FetchRequest(), 1 << 30, ""))
    await asyncio.sleep(0)
    assert fetch.done() is not others
    known.keys.write({KEYS.user("ada"): None})
    if others:
        with pytest.raises(UnauthenticatedError, match="deleted"):
            await fetch
