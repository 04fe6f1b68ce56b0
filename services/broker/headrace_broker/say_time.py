"""The command `headrace-broker trust-clock`: an operator confirms the time for clocks in doubt (PROTOCOL H43).

Called by `__main__`. It only reads and writes etcd.
"""

from __future__ import annotations

from headrace.wire.errors import InvalidConfigError
from headrace_server.clock import SystemClock
from headrace_server.clock_watch import OPERATOR, trust_clock
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.tls import read_tls

from headrace_broker.settings import BrokerSettings


async def say_time(settings: BrokerSettings) -> int:
    """Write this machine's time as confirmed by the operator; return it in milliseconds since 1970.

    Raises MetastoreUnavailableError.
    """
    metastore = EtcdMetastore(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=settings.etcd_login)
    try:
        found = (await metastore.get(meta_key(settings.cluster))).key_value
        if found is None:
            raise InvalidConfigError(f"etcd has no cluster {settings.cluster}", action="Set another cluster name.")
        generation = metadata_pb2.ClusterMeta.FromString(found.value).generation
        key = Keyspace(settings.cluster, generation).clock(OPERATOR)
        return await trust_clock(metastore, key, SystemClock())
    finally:
        await metastore.close()
