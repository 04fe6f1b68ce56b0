"""A view of a prefix applies every change once, in the order of revisions (H80, I19)."""

import pytest
from headrace_server.clock import SystemClock
from headrace_server.metastore.api import KeyValue, MetastoreRolledBackError, PutEvent, RangeResult, WatchEvents
from headrace_server.metastore.memory import MemoryMetastore
from headrace_server.metastore.view import PrefixView

CLUSTER = 7


def _key(value: bytes, revision: int) -> KeyValue:
    return KeyValue("p/a", value, create_revision=3, mod_revision=revision, version=1, lease_id=0)


def test_an_event_that_the_list_has_is_not_applied_again():
    """A list of revision 5 is taken in while the event of revision 4 is on its way: it is of the past."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((_key(b"new", 5),), 5, CLUSTER))
    view._take_item(WatchEvents(4, (PutEvent(_key(b"old", 4)),), CLUSTER))
    found = view.get("p/a")
    assert found is not None
    assert (found.value, view.revision) == (b"new", 5)


def test_a_list_of_the_past_is_refused():
    """H81: etcd was restored or replaced; what is known stays."""
    view = PrefixView(MemoryMetastore(), "p/", SystemClock())
    view._take_list(RangeResult((_key(b"new", 5),), 5, CLUSTER))
    with pytest.raises(MetastoreRolledBackError):
        view._take_list(RangeResult((_key(b"old", 4),), 4, CLUSTER))
    found = view.get("p/a")
    assert found is not None
    assert (found.value, view.revision) == (b"new", 5)
