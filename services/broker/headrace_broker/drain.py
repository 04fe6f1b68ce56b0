"""The command `headrace-broker drain`, run on the broker's machine to make the broker safe to stop.

Called by `__main__`, in a container by the hook before SIGTERM. It waits for two conditions:

- Leadership has moved. `drained_brokers/{broker_id}` is written on the lease of the broker's registration and deleted
  with it, so that a restarted broker is not drained. A drain by an administrator is not changed. If the registered
  broker is another instance than that of these settings, for example because a pod was deleted by force and its
  replacement registered before this command ran, there is nothing to hand over.
- Lagging replicas have caught up, if a partition would otherwise have fewer replicas in sync than its minimum, so that
  `acks=all` works without the broker. It does not wait for brokers that are down or stopping.

The broker does the rest at SIGTERM (PROTOCOL H24, H40). This command only reads and writes etcd.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from headrace.wire.errors import MetastoreUnavailableError
from headrace.wire.ids import BrokerId
from headrace_server.clock import Clock, SystemClock
from headrace_server.cluster_identity import read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import meta_key
from headrace_server.metadata_view import Broker, ClusterView, PartitionEntry
from headrace_server.metastore.api import CreateRevisionIs, Metastore, Put, VersionIs
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.view import PrefixView
from headrace_server.tls import read_tls

from headrace_broker.settings import BrokerSettings

MAX_NAMED = 5
"""Maximum partitions named in a sentence before `and n more`."""


class DrainNotFinishedError(MetastoreUnavailableError):
    """The timeout passed first. The message says what was left; a stop now does not lose stored records."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """Partitions that still need a broker, by name (`topic-number`), ascending."""

    led: tuple[str, ...]
    """Partitions that it leads and that another replica could lead."""
    needed: tuple[str, ...]
    """Partitions that would have too few replicas in sync without it, while a replica is catching up."""

    def __bool__(self) -> bool:
        return bool(self.led or self.needed)

    def __str__(self) -> str:
        parts = [f"it still leads {_names(self.led)}"] if self.led else []
        parts += [f"too few replicas would be in sync of {_names(self.needed)}"] if self.needed else []
        return " and ".join(parts)


async def drain(settings: BrokerSettings, timeout_seconds: float) -> str:
    """Drain the broker of these settings and return a sentence about the result.

    Raises:
        DrainNotFinishedError: If it takes longer than `timeout_seconds`.
        MetastoreUnavailableError: If etcd does not respond. No leadership can move; stop the broker without a drain.
    """
    metastore = EtcdMetastore(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=settings.etcd_login)
    left: list[Remainder] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _drain(metastore, settings, SystemClock(), left)
    except TimeoutError as error:
        reason = str(left[-1]) if left else "etcd did not respond"
        raise DrainNotFinishedError(
            f"broker {settings.broker_id} is not drained after {timeout_seconds:g} s: {reason}",
            action="Stop it anyway, or run `headrace cluster health` to find the cause.",
        ) from error
    finally:
        await metastore.close()


async def _drain(metastore: Metastore, settings: BrokerSettings, clock: Clock, left: list[Remainder]) -> str:
    broker_id = BrokerId(settings.broker_id)
    if (await metastore.get(meta_key(settings.cluster))).key_value is None:
        return f"there is no cluster {settings.cluster}: nothing to hand over"
    identity = await read_or_create(metastore, settings.cluster, str(uuid.uuid4()))
    source = PrefixView(metastore, identity.keyspace.prefix, clock)
    await source.load()
    view = ClusterView(identity, source)
    changed = asyncio.Event()
    view.subscribe(lambda _revision, _keys: changed.set())
    broker = view.brokers.get(broker_id)
    if broker is None:
        return f"broker {broker_id} is not registered: nothing to hand over"
    if broker.live.instance != settings.instance:
        return f"another instance of broker {broker_id} is registered: nothing to hand over"
    await _write_drain_key(metastore, view, broker, clock)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(source.run())
        while _same_session(view.brokers.get(broker_id), broker):
            remainder = left_to_hand_over(view, broker_id)
            if not remainder:
                break
            left[:] = [remainder]
            changed.clear()
            await changed.wait()
        watch.cancel()
    return f"broker {broker_id} is drained and may be stopped"


def left_to_hand_over(view: ClusterView, broker_id: BrokerId) -> Remainder:
    """Return the partitions that still need this broker and for which waiting can help."""
    led, needed = [], []
    for topic in sorted(view.topics.values(), key=lambda each: each.name):
        for partition in view.partitions(topic.topic_id):
            others = _able_in_sync(view, partition, broker_id)
            state = partition.state
            if state.leader is not None and state.leader.broker_id == broker_id and others:
                led.append(f"{topic.name}-{partition.partition}")
            if state.replica_of(broker_id) is None or len(others) >= state.min_insync_replicas:
                continue
            if any(_catches_up(view, partition, replica) for replica in state.replicas):
                needed.append(f"{topic.name}-{partition.partition}")
    return Remainder(tuple(led), tuple(needed))


def _able_in_sync(view: ClusterView, partition: PartitionEntry, broker_id: BrokerId) -> list[int]:
    """Return the other brokers that are in sync, registered and not stopping."""
    return [
        entry.broker_id
        for entry in partition.state.in_sync
        if entry.broker_id != broker_id and entry.broker_id in view.brokers and not view.is_draining(entry.broker_id)
    ]


def _catches_up(view: ClusterView, partition: PartitionEntry, replica: int) -> bool:
    return (
        partition.state.replica_of(replica) is None
        and BrokerId(replica) in view.brokers
        and not view.is_draining(replica)
    )


async def _write_drain_key(metastore: Metastore, view: ClusterView, broker: Broker, clock: Clock) -> None:
    """Write the key on the registration's lease while that exists; an existing key means that another caller drains."""
    key = view.keyspace.drained_broker(broker.broker_id)
    value = metadata_pb2.DrainedBroker(since_ms=clock.now_ms()).SerializeToString()
    await metastore.txn(
        [VersionIs(key, 0), CreateRevisionIs(view.keyspace.broker(broker.broker_id), broker.broker_epoch)],
        success=[Put(key, value, broker.lease_id)],
        failure=[],
    )


def _same_session(now: Broker | None, broker: Broker) -> bool:
    return now is not None and now.broker_epoch == broker.broker_epoch


def _names(partitions: tuple[str, ...]) -> str:
    more = len(partitions) - MAX_NAMED
    return ", ".join(partitions[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
