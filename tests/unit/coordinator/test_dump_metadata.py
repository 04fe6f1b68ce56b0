"""`DumpMetadata`: users and grants are for administrators, whatever the posture."""

from types import SimpleNamespace

import pytest
from headrace.v1 import auth_pb2, cluster_pb2
from headrace.wire.errors import NotAuthorizedError
from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.cluster_service import ClusterServicer
from headrace_server.identity.callers import ANONYMOUS
from headrace_server.identity.gate import Access, set_access
from headrace_server.metastore.api import Put
from prometheus_client import CollectorRegistry

from tests.fakes.memory_metastore import MemoryMetastore
from tests.unit.common.identity.test_gate import KEYS, Known


class Dumps:
    """A coordinator over keys of a cluster with one user."""

    def __init__(self, posture):
        self.known = Known(posture)
        self.metastore = MemoryMetastore()
        self.servicer = ClusterServicer(
            self.metastore,
            SimpleNamespace(keyspace=KEYS),
            topics=None,
            partitions=None,
            brokers=None,
            settings=SimpleNamespace(max_request_topics=1),
            metrics=CoordinatorMetrics(CollectorRegistry()),
            etcd_version="",
        )
        self.keys = [KEYS.topic("t"), KEYS.user("ada"), KEYS.grant("ada", "admin", "cluster")]

    async def start(self):
        await self.metastore.txn([], [Put(key, b"") for key in self.keys])
        return self

    async def dump(self, user, prefix=""):
        caller = self.known.gate.identification.caller(self.known.user(user)) if user else ANONYMOUS
        set_access(Access(self.known.gate, caller, "DumpMetadata"))
        request = cluster_pb2.DumpMetadataRequest(prefix=prefix)
        dumped = ClusterServicer.DumpMetadata.__wrapped__(self.servicer, request, None)
        return sorted([entry.key async for entry in dumped])


async def test_a_dump_has_the_keys_of_every_scope():
    """Those of directories decide whether a broker starts; each scope can be selected by its name."""
    dumps = await Dumps(auth_pb2.POSTURE_OPEN).start()
    dumps.known.grant("ada", "admin", "cluster")
    more = {"groups/": KEYS.group("g"), "directories/": KEYS.directory(1), "schema_registry/": KEYS.schema_registry()}
    await dumps.metastore.txn([], [Put(key, b"") for key in more.values()])
    assert await dumps.dump("ada") == sorted([*dumps.keys, *more.values()])
    for prefix, key in more.items():
        assert await dumps.dump("ada", prefix) == [key]


@pytest.mark.parametrize("posture", [auth_pb2.POSTURE_OPEN, auth_pb2.POSTURE_OBSERVE])
@pytest.mark.parametrize("user", ["", "bob"])
async def test_a_dump_has_users_and_grants_for_administrators_alone(posture, user):
    """Before the cluster is closed, too, as lists of users do: a stranger would learn whom to impersonate."""
    dumps = await Dumps(posture).start()
    assert await dumps.dump(user) == [KEYS.topic("t")]
    for prefix in ("identity/", "identity/users/"):
        with pytest.raises(NotAuthorizedError, match="users and grants"):
            await dumps.dump(user, prefix)
    dumps.known.grant("ada", "admin", "cluster")
    assert await dumps.dump("ada") == sorted(dumps.keys)
    assert await dumps.dump("ada", "identity/") == sorted(dumps.keys[1:])
