"""The command `headrace-coordinator recover-metadata`: rebuilds metadata after etcd was restored from a backup (H81).

It is a command of the coordinator, whose settings contain the endpoints and certificates of etcd; brokers contribute
the output of `headrace-broker export-log-state`. The new generation is written below a prefix that no process reads
yet, and one transaction makes it current. The next run discards the keys of an interrupted run, which can write no more
then; a run after a successful one begins another generation. The old generation's keys are kept for inspection, and its
key `superseded` stops every process that still uses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.wire.errors import InvalidConfigError
from headrace_server.clock_watch import OPERATOR, believed_clock
from headrace_server.cluster_identity import FORMAT_VERSION, SECRET_BYTES, ClusterIdentity, read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import (
    BrokerKey,
    BrokerSessionKey,
    ClockKey,
    ControllerKey,
    CoordinatorKey,
    DeletedTopicKey,
    DrainedBrokerKey,
    GroupKey,
    GroupOffsetKey,
    PartitionKey,
    SupersededKey,
    TopicIdKey,
    TopicKey,
)
from headrace_server.keys import Keyspace, meta_key
from headrace_server.metastore.api import Delete, DeletePrefix, KeyValue, Metastore, ModRevisionIs, Put, VersionIs
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.partition_state import PartitionState, decode, encode
from headrace_server.settings import SettingsError
from headrace_server.tls import read_tls

from headrace_coordinator.core.group_encoding import decode_group, encode_group
from headrace_coordinator.core.metadata_recovery import (
    BrokerLogState,
    GenerationPlan,
    LogEnd,
    empty_group,
    plan_partitions,
    reserve_column_ids,
    reserve_schema_ids,
)
from headrace_coordinator.settings import CoordinatorSettings

LOG_STATE_FORMAT = 1
WAIT_SECONDS = 60.0
"""Maximum wait for the registrations of stopped processes to expire: the restore renewed their leases."""
CHUNK_KEYS, CHUNK_BYTES = 100, 1 << 20


class RecoveryRefusedError(InvalidConfigError):
    """The recovery was refused before any key in use was changed. The message states the next step."""


def read_log_state(path: Path) -> tuple[str, BrokerLogState]:
    """Return the cluster id and log state in an output file of `headrace-broker export-log-state`.

    Raises:
        SettingsError: If the file cannot be read or has another format.
    """
    try:
        return parse_log_state(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} is not a log state of a broker: {error}",
            action="Create it with `headrace-broker export-log-state`.",
        ) from error


def parse_log_state(found: dict[str, Any]) -> tuple[str, BrokerLogState]:
    """Return the cluster id and log state in the content of a file. Raises ValueError, KeyError, TypeError."""
    if found["format"] != LOG_STATE_FORMAT:
        raise ValueError(f"format {found['format']}, expected {LOG_STATE_FORMAT}")
    logs, corrupt = {}, {}
    for log in found["logs"]:
        key = bytes.fromhex(log["topic_id"]), int(log["partition"])
        if "corruption" in log:
            corrupt[key] = str(log["corruption"])
        else:
            logs[key] = LogEnd(*(int(log[name]) for name in LogEnd.__slots__))
    return str(found["cluster_id"]), BrokerLogState(
        int(found["broker_id"]),
        int(found["generation"]),
        bytes.fromhex(found["storage_id"]),
        bytes.fromhex(found["storage_incarnation"]),
        int(found["directory_version"]),
        logs,
        corrupt,
    )


async def run_recovery(
    settings: CoordinatorSettings, log_state_files: Sequence[Path], lost: Sequence[int], *, apply: bool
) -> Iterator[str]:
    """Plan the next generation of the metadata, write it if `apply`, and return the lines of the report.

    Raises:
        SettingsError: If a log state file cannot be read.
        RecoveryRefusedError: If a broker is unaccounted for, a process still runs, or etcd belongs to another cluster.
        MetastoreUnavailableError: If etcd does not answer; run it again.
    """
    read = [read_log_state(path) for path in log_state_files]
    async with _connected(settings) as metastore:
        return await recover_in(metastore, settings.cluster, read, lost, time.time_ns() // 1_000_000, apply=apply)


async def recover_in(
    metastore: Metastore,
    cluster: str,
    read: Sequence[tuple[str, BrokerLogState]],
    lost: Sequence[int],
    now_ms: int,
    *,
    apply: bool,
) -> Iterator[str]:
    """Run the recovery with a connected etcd. `now_ms` becomes a lower bound for clocks of starting processes (H43)."""
    if (await metastore.get(meta_key(cluster))).key_value is None:
        raise RecoveryRefusedError(
            f"there is no cluster {cluster} in this etcd", action="Restore a snapshot of it first."
        )
    identity = await read_or_create(metastore, cluster, str(uuid.uuid4()))
    log_states = [_check_log_state(identity, cluster_id, log_state) for cluster_id, log_state in read]
    if apply:  # A coordinator that still runs acknowledges changes, which belong to what is read.
        await _wait_until_alone(metastore, identity.keyspace)
    backup = await _read_backup(metastore, identity, log_states, now_ms)
    _check_complete(backup, log_states, lost)
    if apply:
        plan = await _write(metastore, identity, backup, log_states, now_ms)
    else:
        plan = plan_partitions(backup.names, backup.states, backup.deleted, log_states, 1, now_ms)
    return _report(identity, backup, plan, applied=apply)


@asynccontextmanager
async def _connected(settings: CoordinatorSettings) -> AsyncIterator[Metastore]:
    metastore = EtcdMetastore(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=settings.etcd_login)
    try:
        yield metastore
    finally:
        await metastore.close()


def _check_log_state(identity: ClusterIdentity, cluster_id: str, log_state: BrokerLogState) -> BrokerLogState:
    if cluster_id != identity.cluster_id:
        raise RecoveryRefusedError(
            f"the log state of broker {log_state.broker_id} is of cluster {cluster_id}, etcd's is "
            f"{identity.cluster_id}",
            action="Pass log states of this cluster, or restore a snapshot of the other one.",
        )
    if log_state.generation > identity.generation:
        raise RecoveryRefusedError(
            f"the disk of broker {log_state.broker_id} is of generation {log_state.generation}, the backup of "
            f"{identity.generation}",
            action="Restore a snapshot that was taken after the last recovery.",
        )
    return log_state


@dataclass(frozen=True, slots=True)
class _Backup:
    """Parts of the old generation that the new one keeps."""

    names: dict[bytes, str]
    states: dict[tuple[bytes, int], PartitionState]
    brokers: frozenset[int]
    """Ids of all brokers that any key names."""
    copied: tuple[tuple[str, bytes], ...]
    """Keys in the new generation with their unchanged values."""
    groups: tuple[tuple[str, bytes], ...]
    """Keys and values of groups in the new generation."""
    deleted: frozenset[bytes]
    """Topics that were deleted before the backup, whose logs are not recovered."""
    begun_again: tuple[str, ...]
    """Names of the topics that have another id now."""
    typed: tuple[str, ...]
    """Names of the typed topics."""
    schema_registry: metadata_pb2.SchemaRegistryState


async def _read_backup(
    metastore: Metastore, identity: ClusterIdentity, log_states: Sequence[BrokerLogState], now_ms: int
) -> _Backup:
    """Read the old generation. A topic of which no disk has a log gets another id.

    It was deleted after the backup, or all of its disks are lost. Its offsets begin again, and positions among the
    records that it had are none among the new ones. So are those of groups in a single partition without a log.
    """
    old, new = identity.keyspace, Keyspace(identity.cluster, identity.generation + 1)
    partitions = {key for log_state in log_states for key in (*log_state.logs, *log_state.corrupt)}
    held = {topic_id for topic_id, _ in partitions}

    def id_of(topic_id: bytes) -> bytes:
        return topic_id if topic_id in held else _next_id(topic_id, new.generation)

    def renewed(value: bytes) -> bytes:
        topic = metadata_pb2.Topic.FromString(value)
        topic.topic_id = id_of(topic.topic_id)
        if "columns" in topic.configs:
            topic.configs["columns"] = _reserved(topic.name, topic.configs["columns"])
        return topic.SerializeToString(deterministic=True)

    names: dict[bytes, str] = {}
    typed: set[str] = set()
    states: dict[tuple[bytes, int], PartitionState] = {}
    brokers: set[int] = set()
    copied: list[tuple[str, bytes]] = []
    groups: list[tuple[str, bytes]] = []
    deleted: set[bytes] = set()
    for key_value in (await metastore.range(old.prefix)).key_values:
        renamed = new.prefix + key_value.key[len(old.prefix) :]
        match old.parse(key_value.key):
            case PartitionKey(topic_id, number):
                state = states[(id_of(topic_id), number)] = decode(key_value.value)
                brokers.update(state.replicas)
            case TopicIdKey(topic_id):
                topic = metadata_pb2.Topic.FromString(key_value.value)
                names.setdefault(id_of(topic_id), topic.name)
                if "columns" in topic.configs:
                    typed.add(topic.name)
                copied.append((new.topic_by_id(id_of(topic_id)), renewed(key_value.value)))
            case TopicKey():
                copied.append((renamed, renewed(key_value.value)))
            case DeletedTopicKey(topic_id):
                deleted.add(topic_id)
                copied.append((renamed, key_value.value))
            case DrainedBrokerKey():
                if not key_value.lease_id:
                    copied.append((renamed, key_value.value))
            case BrokerSessionKey(broker_id):
                brokers.add(broker_id)
            case BrokerKey() | CoordinatorKey() | ControllerKey() | ClockKey() | SupersededKey():
                pass  # Keys of processes that have ended, or of the old generation only.
            case _:
                raise RecoveryRefusedError(
                    f"the backup holds {key_value.key}, which this release does not support",
                    action="Use the release that wrote it; otherwise the key would be lost.",
                )
    for key_value in (await metastore.range(old.groups_prefix)).key_values:
        renamed = new.groups_prefix + key_value.key[len(old.groups_prefix) :]
        match old.parse(key_value.key):
            case GroupKey():
                group = empty_group(decode_group(key_value.value), new.generation, now_ms)
                groups.append((renamed, encode_group(group)))
            case GroupOffsetKey(_, topic_id, number) if (topic_id, number) in partitions:
                groups.append((renamed, key_value.value))
    again = tuple(sorted(name for topic_id, name in names.items() if topic_id not in held))
    registry = (await metastore.get(new.schema_registry())).key_value
    return _Backup(
        names,
        states,
        frozenset(brokers),
        tuple(copied),
        tuple(groups),
        frozenset(deleted),
        again,
        tuple(sorted(typed)),
        metadata_pb2.SchemaRegistryState.FromString(b"" if registry is None else registry.value),
    )


def _reserved(topic: str, columns: str) -> str:
    try:
        return reserve_column_ids(columns)
    except InvalidConfigError as error:
        raise RecoveryRefusedError(
            f"the columns of topic {topic} are not ones that this release supports: {error.message}",
            action="Use the release that wrote them; otherwise new columns would get ids of old ones.",
        ) from error


def _next_id(topic_id: bytes, generation: int) -> bytes:
    """Return the id of a topic that begins again in a generation."""
    return hashlib.blake2b(topic_id, digest_size=len(topic_id), salt=generation.to_bytes(8)).digest()


def _check_complete(backup: _Backup, log_states: Sequence[BrokerLogState], lost: Sequence[int]) -> None:
    given = [log_state.broker_id for log_state in log_states]
    if len(set(given)) < len(given) or set(given) & set(lost):
        raise RecoveryRefusedError(
            "a broker is named twice", action="Pass one log state file, or --lost, for each broker."
        )
    missing = sorted(backup.brokers - set(given) - set(lost))
    if missing:
        raise RecoveryRefusedError(
            f"the log state of broker {', '.join(map(str, missing))} is missing; it may hold the only copy of records",
            action="Pass its log state file, or --lost with its id if its disk is lost for good.",
        )


async def _wait_until_alone(metastore: Metastore, keyspace: Keyspace) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while left := [*await _registered(metastore, keyspace)]:
        if time.monotonic() > deadline:
            raise RecoveryRefusedError(
                f"{', '.join(left)} still run", action="Stop all brokers and coordinators first."
            )
        await asyncio.sleep(0.2)


async def _registered(metastore: Metastore, keyspace: Keyspace) -> list[str]:
    found: list[KeyValue] = []
    for prefix in (keyspace.broker_prefix(), keyspace.coordinator_prefix()):
        found += (await metastore.range(prefix)).key_values
    names = []
    for key_value in found:
        match keyspace.parse(key_value.key):
            case BrokerKey(broker_id):
                names.append(f"broker-{broker_id}")
            case CoordinatorKey(coordinator_id):
                names.append(f"coordinator-{coordinator_id}")
    return names


async def _write(
    metastore: Metastore, identity: ClusterIdentity, backup: _Backup, log_states: Sequence[BrokerLogState], now_ms: int
) -> GenerationPlan:
    old, new = identity.keyspace, Keyspace(identity.cluster, identity.generation + 1)
    run = await _begin(metastore, identity, new)
    sessions = [Put(new.broker_session(one.broker_id), _session(one)) for one in log_states]
    # The brokers' next registrations continue these sessions, whose epoch is this revision.
    broker_epoch = await _put(metastore, run, sessions)
    plan = plan_partitions(backup.names, backup.states, backup.deleted, log_states, broker_epoch, now_ms)
    topics = [
        (key, topic.SerializeToString())
        for topic in plan.recovered_topics
        for key in (new.topic_by_id(topic.topic_id), new.topic(topic.name))
    ]
    partitions = [(new.partition(*key), encode(state)) for key, state in plan.states.items()]
    versions = [(new.directory(one.broker_id), _directory_version(one)) for one in log_states]
    # Without it a broker would accept any clock reading at start-up.
    clock = new.clock(OPERATOR), believed_clock(now_ms)
    copied = [(key, _grown(new, key, value, plan)) for key, value in backup.copied]
    for chunk in _chunks([*partitions, *copied, *topics, *backup.groups, *versions, clock]):
        await _put(metastore, run, chunk)
    if left := await _registered(metastore, old):
        raise _started(left)
    after = metadata_pb2.ClusterMeta(
        cluster_id=identity.cluster_id, generation=new.generation, format_version=FORMAT_VERSION
    )
    ended = after.SerializeToString()  # Every client can read it, so it is without the secret.
    after.secret = secrets.token_bytes(SECRET_BYTES)  # The old secret is in the backup, which others may have read.
    result = await metastore.txn(
        [
            run,
            *(VersionIs(old.broker(broker_id), 0) for broker_id in sorted(backup.brokers)),
        ],
        [
            Put(meta_key(identity.cluster), after.SerializeToString()),
            Put(old.superseded(), ended),
            Put(new.schema_registry(), reserve_schema_ids(backup.schema_registry).SerializeToString()),
            Delete(old.cluster_secrets()),
            DeletePrefix(old.signing_key_prefix()),  # They are in the backup, too: the controller makes a new one.
        ],
    )
    if not result.succeeded:
        raise _started(await _registered(metastore, old)) if await _is_current(metastore, run) else _another_run()
    return plan


async def _begin(metastore: Metastore, identity: ClusterIdentity, new: Keyspace) -> ModRevisionIs:
    """Discard the keys of an interrupted run; return the condition under which this run may write.

    Each run writes `meta` again, so that an earlier one that still runs can neither write nor begin its generation.
    """
    key = meta_key(identity.cluster)
    meta = (await metastore.get(key)).key_value
    if meta is None or metadata_pb2.ClusterMeta.FromString(meta.value).generation != identity.generation:
        raise _another_run()
    discarded = [DeletePrefix(prefix) for prefix in (new.prefix, new.groups_prefix, new.directories_prefix)]
    begun = await metastore.txn([ModRevisionIs(key, meta.mod_revision)], [*discarded, Put(key, meta.value)])
    if not begun.succeeded:
        raise _another_run()
    return ModRevisionIs(key, begun.revision)


async def _put(metastore: Metastore, run: ModRevisionIs, puts: list[Put]) -> int:
    """Write keys of the new generation; return the revision.

    Raises:
        RecoveryRefusedError: If a later run has begun.
    """
    result = await metastore.txn([run], puts)
    if not result.succeeded:
        raise _another_run()
    return result.revision


async def _is_current(metastore: Metastore, run: ModRevisionIs) -> bool:
    meta = (await metastore.get(run.key)).key_value
    return meta is not None and meta.mod_revision == run.revision


def _another_run() -> RecoveryRefusedError:
    return RecoveryRefusedError(
        "another run of recover-metadata has begun since", action="See how that run ends, and run one at a time."
    )


def _started(names: Sequence[str]) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"{', '.join(names) or 'a broker'} started during the recovery",
        action="Stop all brokers and coordinators first.",
    )


def _grown(new: Keyspace, key: str, value: bytes, plan: GenerationPlan) -> bytes:
    """Return the value of a copied key; a topic's with the partitions that were added after the backup."""
    if not plan.grown or not isinstance(new.parse(key), TopicKey | TopicIdKey):
        return value
    topic = metadata_pb2.Topic.FromString(value)
    topic.partitions = plan.grown.get(topic.topic_id, topic.partitions)
    return topic.SerializeToString(deterministic=True)


def _session(log_state: BrokerLogState) -> bytes:
    """Return a session without a process, so that the next session of the directory can prove that it is complete."""
    return metadata_pb2.BrokerSession(
        storage_id=log_state.storage_id, storage_incarnation=log_state.storage_incarnation
    ).SerializeToString()


def _directory_version(log_state: BrokerLogState) -> bytes:
    """Return the version of the inspected directory, so that an older copy of it is rejected."""
    return metadata_pb2.DirectoryVersion(
        storage_id=log_state.storage_id, version=log_state.directory_version
    ).SerializeToString()


def _chunks(pairs: Sequence[tuple[str, bytes]]) -> Iterator[list[Put]]:
    chunk: list[Put] = []
    size = 0
    for key, value in pairs:
        if chunk and (len(chunk) >= CHUNK_KEYS or size + len(key) + len(value) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(Put(key, value))
        size += len(key) + len(value)
    if chunk:
        yield chunk


def _report(identity: ClusterIdentity, backup: _Backup, plan: GenerationPlan, *, applied: bool) -> Iterator[str]:
    yield from plan.notes
    for name in backup.begun_again:
        yield f"topic {name}: no disk has a log of it, as after a deletion; its offsets begin again, under another id"
    for name in backup.typed:
        yield f"topic {name}: its columns are those of the backup; values of columns added since are not read"
    led = sum(bool(state.in_sync) for state in plan.states.values())
    yield (
        f"generation {identity.generation + 1} of cluster {identity.cluster}: {len(backup.names)} topics of the "
        f"backup, {len(plan.recovered_topics)} that it lacks; {led} of {len(plan.states)} partitions can be led"
    )
    yield "begun: start coordinators and brokers" if applied else "nothing was changed: pass --apply to begin it"
