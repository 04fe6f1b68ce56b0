"""etcd put back to a snapshot, and what an operator does then: docs/guides/disaster-recovery.md, with the shipped code.

Processes run on and are started again meanwhile, as supervisors do. Then everything is stopped, `headrace-broker
export-log-state` looks at each disk, `headrace-coordinator recover-metadata` begins a generation, and everything is
started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.log.errors import WrongDirectoryError
from headrace_broker.log_state_export import look_at
from headrace_coordinator.core import topic_writes
from headrace_coordinator.recover_metadata import parse_log_state, recover_in
from headrace_server.cluster_identity import read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import TopicIdKey
from headrace_server.metastore.state import Snapshot

from tests.fakes.memory_filesystem import Loss
from tests.simulation.etcd import run_now
from tests.simulation.world import EPOCH_MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

BUMP = 1_000_000_000
"""As the guide says: `etcdutl snapshot restore --bump-revision`."""
LOOK_MS = 200


class Recovery:
    """The backup, and how far the operator is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.backup: Snapshot | None = None
        self.is_due = False
        """etcd is one of the past, and no new generation has begun."""
        self.stops_all = False
        """Nothing is started until the new generation has begun."""
        self._held_back: set[int] = set()
        """Brokers without a session when etcd was put back: they may have seen nothing later, and do not run before."""

    def may_start(self, broker_id: int) -> bool:
        """Whether a broker may be started, by a supervisor or by an operator."""
        return not self.stops_all and broker_id not in self._held_back

    def take_backup(self) -> None:
        """Take a snapshot of etcd."""
        self.backup = self._cluster.etcd.store.back_up()

    def put_etcd_back(self, *, bumped: bool) -> None:
        """Put etcd back to the snapshot; `bumped`: its revision continues far above all that were seen."""
        cluster, backup = self._cluster, self.backup
        assert backup is not None
        cluster.world.note("op", f"puts etcd back to revision {backup.revision}{', bumped' if bumped else ''}")
        self.is_due, self.backup = True, None
        out = [node for node in cluster.brokers.values() if node.broker is None or not node.broker.registered]
        self._held_back = {node.broker_id for node in out}
        for node in out:
            node.kill(Loss.NOTHING)
        cluster.administration.etcd_went_back()
        cluster.checks.etcd_went_back()
        cluster.etcd.put_back(backup, backup.revision + BUMP if bumped else backup.revision)

    def begin(self) -> None:
        """Stop everything, and begin a new generation once no registration is left."""
        if not self.is_due or self.stops_all:
            return
        cluster = self._cluster
        cluster.world.note("op", "stops everything")
        self.stops_all = True
        for node in cluster.brokers.values():
            node.kill(Loss.NOTHING)
        for coordinator in cluster.coordinators:
            coordinator.kill()
        self._look()

    def _look(self) -> None:
        cluster = self._cluster
        store = cluster.etcd.store
        store.expire_leases()
        if any(found.lease_id for found in run_now(store.range(cluster.keyspace.prefix)).key_values):
            cluster.world.after(LOOK_MS, cluster.operator, "", self._look)
            return
        self._begin_generation()
        self.is_due = self.stops_all = False
        self._held_back.clear()
        for coordinator in cluster.coordinators:
            coordinator.start()
        for node in cluster.brokers.values():
            node.start()

    def _begin_generation(self) -> None:
        cluster, store = self._cluster, self._cluster.etcd.store
        log_states, lost = [], []
        for node in cluster.brokers.values():
            try:
                with node.sound_disk():
                    found = look_at("/data", node.broker_id, boot_id=node.boot_id, filesystem=node.filesystem)
            except WrongDirectoryError:
                cluster.world.count("generations begun without a broker's disk")
                lost.append(node.broker_id)
            else:
                log_states.append(parse_log_state(found))
        now_ms = EPOCH_MS + cluster.world.now_ms
        lines = run_now(recover_in(store, cluster.identity.cluster, log_states, lost, now_ms, apply=True))
        for line in lines:
            cluster.world.note("op", f"recover-metadata: {line}")
        cluster.identity = run_now(read_or_create(store, cluster.identity.cluster, ""))
        cluster.checks.generation_began()
        self._settle_topics()
        cluster.administration.generation_began()

    def _settle_topics(self) -> None:
        """Continue with the topic under its present name; topics of the past that reappeared are dropped."""
        cluster, store = self._cluster, self._cluster.etcd.store
        wanted, configs = cluster.topic.topic_id, dict(cluster.topic.configs)
        configs.pop("columns", None)  # Those of the backup: the ids of later ones are refused.
        cluster.topic = metadata_pb2.Topic()
        found = {}
        for key_value in run_now(store.range(cluster.keyspace.prefix)).key_values:
            if isinstance(cluster.keyspace.parse(key_value.key), TopicIdKey):
                topic = metadata_pb2.Topic.FromString(key_value.value)
                found[topic.topic_id] = topic
        for topic_id, topic in sorted(found.items()):
            if topic_id != wanted or (cluster.plan.typed and "columns" not in topic.configs):
                cluster.world.count("topics of the past that came back")
                self._remove(topic)
                del found[topic_id]
        if wanted in found:
            cluster.topic = found[wanted]
            if cluster.topic.name.startswith("recovered-"):
                cluster.world.count("topics that etcd had lost")
            self._configure(configs)
        elif wanted:
            cluster.give_up_topic(wanted)

    def _remove(self, topic: metadata_pb2.Topic) -> None:
        """Delete a topic while everything is stopped."""
        keyspace = self._cluster.keyspace
        self._write(topic_writes.delete(keyspace, topic, self._revision(keyspace.topic(topic.name)), 0))

    def _configure(self, configs: Mapping[str, str]) -> None:
        """Store the latest settings of the topic while everything is stopped."""
        keyspace, topic = self._cluster.keyspace, self._cluster.topic
        topic.configs.update(configs)
        revisions = self._revision(keyspace.topic(topic.name)), self._revision(keyspace.topic_by_id(topic.topic_id))
        self._write(topic_writes.configure(keyspace, topic, *revisions))

    def _revision(self, key: str) -> int:
        found = self._cluster.etcd.store.now(key)
        assert found is not None, "the new generation has it"
        return found.mod_revision

    def _write(self, write: topic_writes.Write) -> None:
        assert run_now(self._cluster.etcd.store.txn(write.compares, write.success, write.failure)).succeeded
