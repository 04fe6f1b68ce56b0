"""Validation of requests to create, delete, grow and configure topics.

Pure; the runtime passes the request and the current view. Every error is typed and raised before anything is written.
`topic_writes` builds the transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.partition.partition_counts import check_larger
from headrace.partition.topic_configs import (
    alter_topic_configs,
    effective_min_insync_replicas,
    normalise_topic_configs,
    parse_topic_config,
    read_stored_topic_config,
)
from headrace.placement.policy import MAX_REPLICATION_FACTOR, RACK, PlacementPolicy
from headrace.wire.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NotEnoughBrokersError,
    UnknownBrokerError,
)
from headrace.wire.topic_names import check_new_topic_name
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.partition_state import PartitionState, Replica, check_shape

from headrace_coordinator.core.placement import BrokerLoad, Placement, lacking_brokers, place, spread_warnings

MAX_CONFIGS = 100
"""Maximum number of settings in one request for one topic."""


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Defaults and limits for the numbers in a request."""

    partitions: int = 1
    replication_factor: int = 3
    """Limited to the number of brokers that accept replicas."""
    max_partitions: int = 10_000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Requested topic; `0` means the default."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedTopic:
    """Validated topic with all defaults resolved."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    """Canonical values of the settings that differ from the defaults."""
    min_insync_replicas: int
    """The setting; `0` means the default for the number of replicas."""
    policy: PlacementPolicy = RACK
    assignments: tuple[tuple[int, ...], ...] = ()
    """Explicit broker ids per partition; empty means that `placement` chooses."""
    warnings: tuple[str, ...] = ()
    """Warnings about the numbers, for the operator."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Registered broker that accepts replicas: its session and its load."""

    broker_epoch: int
    load: BrokerLoad


def check_new_topic(spec: TopicSpec, defaults: TopicDefaults, brokers: int) -> CheckedTopic:
    """Resolve the defaults of a new topic and check everything that does not depend on single brokers.

    `brokers` is the number that accept replicas now, the upper limit of the default replication factor.

    Raises:
        InvalidTopicNameError, InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigError,
        InvalidRequestError: If the request is invalid; a retry cannot succeed.
    """
    check_new_topic_name(spec.name)
    if len(spec.configs) > MAX_CONFIGS:
        raise InvalidConfigError(f"{len(spec.configs)} settings for one topic, more than {MAX_CONFIGS}")
    policy = parse_topic_config(spec.configs).placement_policy
    _check_policy(policy, spec.replication_factor)
    warnings: tuple[str, ...] = ()
    if spec.assignments:
        partitions, replication_factor = _check_assignments(
            spec.assignments,
            spec.partitions,
            spec.replication_factor or policy.replication_factor,
            defaults.max_partitions,
        )
    else:
        partitions = spec.partitions or defaults.partitions
        replication_factor = spec.replication_factor or policy.replication_factor
        if not replication_factor:
            replication_factor = max(1, min(defaults.replication_factor, brokers))
            if replication_factor < defaults.replication_factor:
                warnings = (_few_brokers(replication_factor, defaults.replication_factor),)
    _check_partitions(partitions, defaults.max_partitions)
    _check_replication_factor(replication_factor)
    configs, min_insync_replicas = _check_configs(spec.configs, replication_factor)
    return CheckedTopic(
        spec.name,
        partitions,
        replication_factor,
        configs,
        min_insync_replicas,
        policy,
        assignments=spec.assignments,
        warnings=warnings,
    )


def place_new_topic(topic: CheckedTopic, candidates: Mapping[int, Candidate]) -> Placement:
    """Choose brokers for all partitions of a checked topic.

    Raises:
        NotEnoughBrokersError: If there are fewer live brokers than replicas, or in a data center; retry when there are
            more.
        UnknownBrokerError: If an explicit assignment names a broker that is not registered or is draining.
        InvalidRequestError: If an explicit assignment differs from the placement policy.
    """
    return _place(candidates, topic.partitions, topic.replication_factor, topic.policy, topic.assignments)


def check_more_partitions(
    topic: metadata_pb2.Topic, total: int, assignments: Sequence[Sequence[int]], limit: int
) -> int:
    """Return the number of partitions to add to reach `total`.

    Raises:
        InvalidPartitionsError: If `total` is not more than the current number, or above `limit`, or it is a table.
        InvalidRequestError: If `assignments` does not match.
    """
    check_larger(topic.name, topic.partitions, total, read_stored_topic_config(topic.configs)[0])
    _check_partitions(total, limit)
    added = total - topic.partitions
    if assignments:
        _check_assignments(assignments, added, _replication_factor(topic), limit)
    return added


def place_more_partitions(
    topic: metadata_pb2.Topic,
    added: int,
    assignments: Sequence[Sequence[int]],
    candidates: Mapping[int, Candidate],
    states: Iterable[PartitionState],
) -> Placement:
    """Choose brokers for `added` further partitions, given the current `states`. Raises as `place_new_topic`."""
    replicas: dict[int, int] = {}
    leaders: dict[int, int] = {}
    for state in states:
        for broker_id in state.replicas:
            replicas[broker_id] = replicas.get(broker_id, 0) + 1
        leaders[state.replicas[0]] = leaders.get(state.replicas[0], 0) + 1
    with_topic = {
        broker_id: replace(
            candidate,
            load=replace(
                candidate.load, topic_replicas=replicas.get(broker_id, 0), topic_leaders=leaders.get(broker_id, 0)
            ),
        )
        for broker_id, candidate in candidates.items()
    }
    return _place(with_topic, added, _replication_factor(topic), stored_policy(topic), assignments)


def stored_policy(topic: metadata_pb2.Topic) -> PlacementPolicy:
    """Return the placement policy of a topic in etcd; the default if this release cannot read it."""
    return read_stored_topic_config(topic.configs)[0].placement_policy


def _replication_factor(topic: metadata_pb2.Topic) -> int:
    return stored_policy(topic).replication_factor or topic.replication_factor


def initial_state(
    replicas: Sequence[int], candidates: Mapping[int, Candidate], min_insync_replicas: int, *, durable: bool
) -> PartitionState:
    """Return the initial value of a partition's key: all replicas are in sync, the first leads in epoch 0.

    `min_insync_replicas` is the topic's setting; `durable` means that it acknowledges only flushed records.
    """
    members = tuple(Replica(broker_id, candidates[broker_id].broker_epoch) for broker_id in replicas)
    state = PartitionState(
        replicas=tuple(replicas),
        leader=members[0],
        leader_epoch=0,
        in_sync=members,
        min_insync_replicas=effective_min_insync_replicas(min_insync_replicas, len(replicas)),
        durable=durable,
    )
    check_shape(state)
    return state


def add_load(candidates: Mapping[int, Candidate], assignments: Iterable[Sequence[int]]) -> dict[int, Candidate]:
    """Return `candidates` with `assignments` added to their loads, for the next topic of the request."""
    replicas = {broker_id: candidate.load.replicas for broker_id, candidate in candidates.items()}
    leaders = {broker_id: candidate.load.leaders for broker_id, candidate in candidates.items()}
    for members in assignments:
        leaders[members[0]] += 1
        for broker_id in members:
            replicas[broker_id] += 1
    return {
        broker_id: replace(
            candidate, load=replace(candidate.load, replicas=replicas[broker_id], leaders=leaders[broker_id])
        )
        for broker_id, candidate in candidates.items()
    }


def altered_configs(
    topic: metadata_pb2.Topic,
    changes: Mapping[str, str],
    unset: Sequence[str],
    candidates: Mapping[int, Candidate],
) -> dict[str, str]:
    """Return the settings to store after `changes` and `unset`; `candidates` are the brokers that accept replicas.

    Raises:
        InvalidConfigError: If a name is unknown, a value or a relation is invalid, or there are no or too many changes.
        NotEnoughBrokersError: If a data center of a new placement has fewer brokers than replicas.
    """
    if not changes and not unset:
        raise InvalidRequestError("the request changes no setting", action="Name at least one setting to set or unset.")
    if len(changes) + len(unset) > MAX_CONFIGS:
        raise InvalidConfigError(
            f"{len(changes) + len(unset)} settings in one request, more than {MAX_CONFIGS}", action="Name each once."
        )
    configs = alter_topic_configs(topic.configs, changes, unset)
    policy = parse_topic_config(configs).placement_policy
    _check_configs(configs, policy.replication_factor or topic.replication_factor)
    if policy.counts and policy != stored_policy(topic):
        _check_enough(candidates, policy.replication_factor, policy)
    return configs


def _place(
    candidates: Mapping[int, Candidate],
    partitions: int,
    replication_factor: int,
    policy: PlacementPolicy,
    assignments: Sequence[Sequence[int]],
) -> Placement:
    loads = [candidates[broker_id].load for broker_id in sorted(candidates)]
    if assignments:
        for broker_id in sorted({broker_id for replicas in assignments for broker_id in replicas}):
            if broker_id not in candidates:
                known = ", ".join(map(str, sorted(candidates))) or "there are none"
                raise UnknownBrokerError(
                    f"broker {broker_id} is not registered, or is draining",
                    action=f"Assign to brokers that live: {known}.",
                )
        explicit = tuple(tuple(replicas) for replicas in assignments)
        data_centers = {load.broker_id: load.data_center for load in loads}
        for replicas in explicit:
            check_policy(policy, data_centers, replicas)
        return Placement(explicit, spread_warnings(loads, explicit, policy))
    _check_enough(candidates, replication_factor, policy)
    return place(loads, partitions=partitions, replication_factor=replication_factor, policy=policy)


def check_policy(policy: PlacementPolicy, data_centers: Mapping[int, str], replicas: Sequence[int]) -> None:
    """Check explicit replicas of a partition; `data_centers` are those of the registered brokers.

    Raises:
        InvalidRequestError: If they differ from the numbers of the policy.
    """
    if found := policy.mismatch(data_centers, replicas):
        raise InvalidRequestError(
            f"the brokers {list(replicas)} are {found} by data center, and the topic has placement = {policy.text}",
            action="Name brokers as the placement says, or change the topic's placement first.",
        )


def _check_enough(candidates: Mapping[int, Candidate], replication_factor: int, policy: PlacementPolicy) -> None:
    loads = [candidate.load for candidate in candidates.values()]
    if lacking := lacking_brokers(loads, replication_factor, policy):
        names = ", ".join(sorted({load.data_center for load in loads if load.data_center})) or "there are none"
        raise NotEnoughBrokersError(
            f"{lacking} by placement = {policy.text}; data centers of these brokers: {names}"
            if policy.counts
            else lacking,
            retry_after_ms=1_000,
        )


def _few_brokers(replication_factor: int, default: int) -> str:
    replicas = "1 replica" if replication_factor == 1 else f"{replication_factor} replicas"
    lost = "the loss of its broker is an outage" if replication_factor == 1 else "writes survive the loss of one broker"
    return f"{replicas} in place of {default}: no more brokers are registered and take replicas; {lost}"


def _check_partitions(partitions: int, limit: int) -> None:
    if not 1 <= partitions <= limit:
        raise InvalidPartitionsError(
            f"{partitions} partitions are outside 1 .. {limit}",
            action=f"Ask for 1 to {limit} partitions; max_partitions_per_topic of the coordinators sets the limit.",
        )


def _check_replication_factor(replication_factor: int) -> None:
    if replication_factor < 1:
        raise InvalidReplicationFactorError(f"replication factor {replication_factor} is below 1")
    if replication_factor > MAX_REPLICATION_FACTOR:
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} is above {MAX_REPLICATION_FACTOR}",
            action=f"Ask for 1 to {MAX_REPLICATION_FACTOR} replicas, or leave it out.",
        )


def _check_policy(policy: PlacementPolicy, replication_factor: int) -> None:
    if policy.counts and replication_factor not in (0, policy.replication_factor):
        raise InvalidReplicationFactorError(
            f"{replication_factor} replicas are asked for, placement = {policy.text} has {policy.replication_factor}",
            action="Leave the replication factor out: the placement sets it.",
        )


def _check_configs(configs: Mapping[str, str], replication_factor: int) -> tuple[dict[str, str], int]:
    """Return the settings to store, and min_insync_replicas (`0` means the default)."""
    min_insync_replicas = parse_topic_config(configs).min_insync_replicas
    if min_insync_replicas > replication_factor:
        raise InvalidConfigError(
            f"min_insync_replicas = {min_insync_replicas} is more than the replication factor {replication_factor}: "
            "no record could ever be acknowledged",
            action=f"Set min_insync_replicas to {replication_factor} or less.",
        )
    return normalise_topic_configs(configs), min_insync_replicas


def _check_assignments(
    assignments: Sequence[Sequence[int]], partitions: int, replication_factor: int, limit: int
) -> tuple[int, int]:
    """Return the numbers of partitions and replicas of explicit assignments; a requested `0` matches any number."""
    _check_partitions(len(assignments), limit)
    if partitions not in (0, len(assignments)):
        raise InvalidRequestError(
            f"{partitions} partitions are asked for and {len(assignments)} are assigned",
            action="Give one assignment for each new partition.",
        )
    size = len(assignments[0])
    for number, replicas in enumerate(assignments):
        if not replicas or len(replicas) != size or len(set(replicas)) != size:
            raise InvalidRequestError(
                f"assignment {number} names the brokers {list(replicas)}",
                action="Name distinct brokers, at least one and equally many in each assignment.",
            )
    if replication_factor not in (0, size):
        raise InvalidReplicationFactorError(
            f"{replication_factor} replicas are asked for and {size} are assigned",
            action="Name as many brokers in each assignment as there are replicas.",
        )
    return len(assignments), size
