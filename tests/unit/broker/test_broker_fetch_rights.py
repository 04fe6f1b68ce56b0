"""A fetch that waited for records, or for its quota, is checked again before it is answered."""

import contextlib

import pytest
from headrace.v1 import broker_pb2
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError
from headrace_broker.rpc.fetch import _check_rights, _Wanted
from headrace_server.identity.gate import set_access

from tests.unit.broker.test_broker_start import service_of
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


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_fetch_that_waited_for_its_quota_is_checked_again(known, monkeypatch, is_deleted):
    """Its user had fetched too much, and waits for seconds."""
    set_access(known.access(known.user("ada")))

    async def wait(*_):
        if is_deleted:
            known.keys.write({KEYS.user("ada"): None})
        return 1

    monkeypatch.setattr(known.gate.quotas, "hold", wait)
    service = service_of(None, fences=False)
    with pytest.raises(UnauthenticatedError, match="deleted") if is_deleted else contextlib.nullcontext():
        await service.hold_fetch()
