"""`headrace topic describe`: partitions, replicas with their lag, sizes, settings."""

from typing import TYPE_CHECKING

from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Column, Facts, JsonValue, Note, Report, Section, TableSection, bytes_text
from headrace.cli.common.session import Session, command
from headrace.cli.partition.replica_logs import gather_logs, leader_logs, silence_text

if TYPE_CHECKING:
    from headrace.client.admin.replication import LogInfo
    from headrace.client.admin.rpc import ConfigValue, PartitionDescription, TopicDescription


@command()
def describe(session: Session, *, topic: Topic) -> None:
    """Show a topic's partitions, replicas, sizes and settings.

    The lag of a replica is the records of its leader's log that it does not have, and the ms since it had all of them.
    The table shows the greatest lag of each partition, --output wide and json that of every replica.

    \b
    Examples:
      headrace topic describe clicks
      headrace topic describe clicks --output wide
      headrace topic describe clicks --output json
    """
    with session.admin() as admin:
        found = admin.describe_topic(topic)
        configs = admin.describe_config(topic)
        holders = {broker_id for each in found.partitions for broker_id in each.replicas}
        live = [broker.broker_id for broker in admin.describe_cluster().brokers if broker.broker_id in holders]
        logs, silent = gather_logs(admin, live, topic)
    for broker_id, error in silent.items():
        session.note(f"offsets and sizes are missing: {silence_text(broker_id, error)}")
    partitions = [_partition_row(each, logs) for each in found.partitions]
    session.show(Report(_description(found, partitions, configs), _sections(found, partitions, configs)))


def _partition_row(partition: "PartitionDescription", logs: "list[LogInfo]") -> dict[str, JsonValue]:
    own = {log.broker_id: log for log in logs if log.partition == partition.partition}
    log = next(iter(leader_logs(own.values()).values()), None)
    replicas = [_replica_row(partition, broker_id, log, own.get(broker_id)) for broker_id in partition.replicas]
    return {
        "partition": partition.partition,
        "leader": partition.leader_id if partition.leader_id >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync_replicas": list(partition.in_sync_replicas),
        "eligible_leaders": list(partition.eligible_leaders),
        "adding_replicas": list(partition.adding_replicas),
        "removing_replicas": list(partition.removing_replicas),
        "min_insync_replicas": partition.min_insync_replicas,
        "unclean": partition.unclean,
        "log_start_offset": log.log_start_offset if log else None,
        "high_watermark": log.high_watermark if log else None,
        "log_end_offset": log.log_end_offset if log else None,
        "flushed_offset": log.flushed_offset if log else None,
        "size_bytes": log.size_bytes if log else None,
        "segments": log.segments if log else None,
        "compacted_offset": _greatest(replicas, "compacted_offset"),
        "lag_records": _greatest(replicas, "lag_records"),
        "lag_ms": _greatest(replicas, "lag_ms"),
        "replica_logs": replicas,
    }


def _replica_row(
    partition: "PartitionDescription", broker_id: int, leader: "LogInfo | None", own: "LogInfo | None"
) -> dict[str, JsonValue]:
    """Return a replica as a row; the leader's report, consistent for all replicas, precedes the replica's own."""
    seen = next((each for each in leader.followers if each.broker_id == broker_id), None) if leader else None
    if seen is not None and seen.log_end_offset < 0:
        seen = None
    end = seen.log_end_offset if seen else own.log_end_offset if own else None
    flushed = seen.durable_offset if seen else own.flushed_offset if own else None
    is_leader = broker_id == partition.leader_id
    return {
        "broker_id": broker_id,
        "leader": is_leader,
        "in_sync": broker_id in partition.in_sync_replicas,
        "log_end_offset": end,
        "flushed_offset": flushed,
        "high_watermark": own.high_watermark if own else None,
        "lag_records": max(0, leader.log_end_offset - end) if leader and end is not None else None,
        "lag_ms": 0 if is_leader and leader else seen.behind_ms if seen else None,
        "size_bytes": own.size_bytes if own else None,
        "compacted_offset": own.compacted_offset if own else None,
        "phi": round(seen.phi, 2) if seen else None,
        "offline_reason": own.offline_reason or None if own else None,
    }


def _greatest(rows: list[dict[str, JsonValue]], name: str) -> int | None:
    return max((value for row in rows if isinstance(value := row[name], int)), default=None)


def _description(
    topic: "TopicDescription", partitions: list[dict[str, JsonValue]], configs: "dict[str, ConfigValue]"
) -> dict[str, JsonValue]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "replication_factor": topic.replication_factor,
        "max_batch_bytes": topic.max_batch_bytes,
        "partitions": partitions,
        "configs": {
            name: {"value": each.value, "is_default": each.is_default, "default": each.default}
            for name, each in configs.items()
        },
    }


def _sections(
    topic: "TopicDescription", partitions: list[dict[str, JsonValue]], configs: "dict[str, ConfigValue]"
) -> tuple[Section, ...]:
    known = [size for row in partitions if isinstance(size := row["size_bytes"], int)]
    minimum = topic.partitions[0].min_insync_replicas if topic.partitions else 0
    facts = Facts(
        (
            ("Topic", topic.name),
            ("Topic id", topic.topic_id.hex()),
            ("Partitions", len(partitions)),
            ("Replicas", topic.replication_factor),
            ("Min in sync", minimum or None),
            ("Size", bytes_text(sum(known)) if known else None),
            ("Max batch bytes", topic.max_batch_bytes),
        )
    )
    rows = [{**row, "moving": _moving(row)} for row in partitions]
    columns = (
        Column("PARTITION", "partition"),
        Column("LEADER", "leader"),
        Column("EPOCH", "leader_epoch"),
        Column("REPLICAS", "replicas"),
        Column("IN SYNC", "in_sync_replicas"),
        Column("ELIGIBLE", "eligible_leaders", wide=not any(row["eligible_leaders"] for row in rows)),
        Column("MOVING", "moving", wide=not any(row["moving"] for row in rows)),
        Column("START", "log_start_offset"),
        Column("HIGH WATERMARK", "high_watermark"),
        Column("LOG END", "log_end_offset"),
        Column("LAG", "lag_records"),
        Column("LAG MS", "lag_ms"),
        Column("BYTES", "size_bytes"),
        Column("FLUSHED", "flushed_offset", wide=True),
        Column("COMPACTED", "compacted_offset", wide=not any(row["compacted_offset"] for row in rows)),
        Column("SEGMENTS", "segments", wide=True),
        Column("UNCLEAN", "unclean", wide=not any(row["unclean"] for row in rows)),
    )
    return facts, TableSection(columns, rows), _replica_table(partitions), _setting_table(configs)


def _moving(row: dict[str, JsonValue]) -> str | None:
    """Return added and removed replicas, such as `+4 -1`."""
    adding, removing = row["adding_replicas"], row["removing_replicas"]
    assert isinstance(adding, list)
    assert isinstance(removing, list)
    return " ".join([*(f"+{each}" for each in adding), *(f"-{each}" for each in removing)]) or None


def _replica_table(partitions: list[dict[str, JsonValue]]) -> TableSection:
    rows: list[dict[str, JsonValue]] = []
    for row in partitions:
        replicas = row["replica_logs"]
        assert isinstance(replicas, list)
        rows += [{"partition": row["partition"], **each} for each in replicas]
    columns = (
        Column("PARTITION", "partition"),
        Column("BROKER", "broker_id"),
        Column("LEADER", "leader"),
        Column("IN SYNC", "in_sync"),
        Column("LOG END", "log_end_offset"),
        Column("FLUSHED", "flushed_offset"),
        Column("HIGH WATERMARK", "high_watermark"),
        Column("LAG", "lag_records"),
        Column("LAG MS", "lag_ms"),
        Column("BYTES", "size_bytes"),
        Column("PHI", "phi"),
        Column("OFFLINE", "offline_reason"),
    )
    return TableSection(columns, rows, wide=True)


def _setting_table(configs: "dict[str, ConfigValue]") -> Section:
    settings: list[dict[str, JsonValue]] = [
        {
            "name": name,
            "value": each.value,
            "source": "default" if each.is_default else "topic",
            "documentation": each.documentation,
        }
        for name, each in configs.items()
    ]
    columns = (
        Column("SETTING", "name"),
        Column("VALUE", "value"),
        Column("SET BY", "source"),
        Column("MEANING", "documentation", wide=True),
    )
    return TableSection(columns, settings) if settings else Note("no settings")
