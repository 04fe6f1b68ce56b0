"""`headrace broker`: list, describe, drain, undrain, check-removal, delete-unclaimed."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.broker.drain import drain, undrain
from headrace.cli.broker.removal import check_removal
from headrace.cli.broker.rows import BROKER_COLUMNS, broker_row
from headrace.cli.broker.unclaimed import UNCLAIMED_COLUMNS, delete_unclaimed, unclaimed_row
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.hidden_topics import HIDDEN_ACTION, hidden_text, warn_of_hidden
from headrace.cli.common.rendering import Column, Facts, JsonValue, Report, TableSection, bytes_text
from headrace.cli.common.session import CommandFailed, Session, command
from headrace.cli.partition.problems import missing_replicas
from headrace.cli.partition.replica_logs import gather_logs, silence_text

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import LogInfo, UnclaimedLogInfo
    from headrace.client.admin.rpc import PartitionDescription

REPLICA_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("LEADER", "leader"),
    Column("IN SYNC", "in_sync"),
    Column("MOVING", "moving"),
    Column("LOG END", "log_end_offset"),
    Column("BYTES", "size_bytes"),
    Column("OFFLINE", "offline_reason"),
)

app = typer.Typer(help="Inspect brokers; drain and undrain them.", no_args_is_help=True, rich_markup_mode=None)
app.command("drain")(drain)
app.command("undrain")(undrain)
app.command("check-removal")(check_removal)
app.command("delete-unclaimed")(delete_unclaimed)


@app.command("list")
@command()
def list_brokers(session: Session) -> None:
    """List the live brokers with the partitions that they lead and hold.

    \b
    Examples:
      headrace broker list
      headrace broker list --output json
    """
    with session.admin() as admin:
        cluster, topics = admin.describe_cluster(), admin.describe_topics()
    partitions = [partition for topic in topics for partition in topic.partitions]
    leads = Counter(partition.leader_id for partition in partitions)
    holds = Counter(broker_id for partition in partitions for broker_id in partition.replicas)
    behind = Counter(broker_id for partition in partitions for broker_id in missing_replicas(partition))
    rows: list[dict[str, JsonValue]] = [
        {
            **broker_row(broker),
            "leads": leads[broker.broker_id],
            "replicas": holds[broker.broker_id],
            "not_in_sync": behind[broker.broker_id],
        }
        for broker in cluster.brokers
    ]
    columns = (
        *BROKER_COLUMNS,
        Column("LEADS", "leads"),
        Column("REPLICAS", "replicas"),
        Column("NOT IN SYNC", "not_in_sync"),
    )
    warn_of_hidden(session, cluster.count_hidden(topics), "and their replicas are not counted")
    session.show(Report(rows, (TableSection(columns, rows, empty="no brokers"),)))


@app.command("describe")
@command()
def describe(
    session: Session, *, broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id.")]
) -> None:
    """Show a broker: its address, disk, the replicas that it leads and holds, and its unclaimed logs.

    For a broker that is down, the state that the others know is shown.

    \b
    Examples:
      headrace broker describe 2
      headrace broker describe 2 --output json
    """
    with session.admin() as admin:
        cluster, topics = admin.describe_cluster(), admin.describe_topics()
        found = next((each for each in cluster.brokers if each.broker_id == broker_id), None)
        held = [
            (topic.name, partition)
            for topic in topics
            for partition in topic.partitions
            if broker_id in partition.replicas
        ]
        hidden = cluster.count_hidden(topics)
        if found is None and not held:
            raise _not_found(broker_id, hidden)
        logs, silent = gather_logs(admin, [broker_id] if found else [])
        disk = admin.describe_disks(brokers=[broker_id])[0] if found and not silent else None
        unclaimed = _unclaimed_logs(session, admin, broker_id) if found and not silent else []
    for error in silent.values():
        session.note(f"sizes are missing: {silence_text(broker_id, error)}")
    warn_of_hidden(session, hidden, f"and broker {broker_id} may lead and hold replicas of them")
    own = {(log.topic, log.partition): log for log in logs}
    replicas = [_replica_row(name, each, broker_id, own.get((name, each.partition))) for name, each in held]
    rows = [unclaimed_row(log) for log in unclaimed]
    document: dict[str, JsonValue] = {
        **(broker_row(found) if found else {"broker_id": broker_id}),
        "registered": found is not None,
        "leads": sum(each.leader_id == broker_id for _, each in held),
        "not_in_sync": sum(broker_id in missing_replicas(each) for _, each in held),
        "size_bytes": sum(log.size_bytes for log in logs) if found and not silent else None,
        "disk_total_bytes": disk.total_bytes if disk else None,
        "disk_free_bytes": disk.free_bytes if disk else None,
        "replicas": list(replicas),
        "unclaimed_logs": list(rows),
        "hidden_topics": hidden,
    }
    facts = (
        ("Broker", broker_id),
        ("Registered", found is not None),
        *((column.heading.capitalize(), document.get(column.field)) for column in BROKER_COLUMNS[1:]),
        ("Leads", document["leads"]),
        ("Replicas", len(replicas)),
        ("Not in sync", document["not_in_sync"]),
        ("Size", bytes_text(sum(log.size_bytes for log in logs)) if logs else None),
        ("Unclaimed", bytes_text(sum(log.size_bytes for log in unclaimed)) if unclaimed else None),
        ("Disk", f"{bytes_text(disk.free_bytes)} free of {bytes_text(disk.total_bytes)}" if disk else None),
    )
    tables = [TableSection(REPLICA_COLUMNS, replicas, empty="no replicas")]
    if rows:
        tables.append(TableSection(UNCLAIMED_COLUMNS, rows))
    session.show(Report(document, (Facts(facts), *tables)))


def _not_found(broker_id: int, hidden: int) -> CommandFailed:
    """Return the error for a broker that is not registered; with hidden topics, it may hold the only copies of them."""
    if hidden:
        return CommandFailed(
            ExitCode.FAILED,
            f"broker {broker_id} is not registered, and it is unknown whether it holds replicas: "
            f"{hidden_text(hidden)}; {HIDDEN_ACTION}",
        )
    return CommandFailed(ExitCode.NOT_FOUND, f"broker {broker_id} is not registered and holds no replica")


def _unclaimed_logs(session: Session, admin: "Admin", broker_id: int) -> "list[UnclaimedLogInfo]":
    from headrace.wire.errors import HeadraceError

    try:
        return admin.describe_unclaimed_logs(broker_id)
    except HeadraceError as failed:  # A starting or fenced broker still describes its replicas.
        session.note(f"unclaimed logs are missing: {failed.message}")
        return []


def _replica_row(
    topic: str, partition: "PartitionDescription", broker_id: int, log: "LogInfo | None"
) -> dict[str, JsonValue]:
    return {
        "topic": topic,
        "partition": partition.partition,
        "leader": partition.leader_id == broker_id,
        "in_sync": broker_id in partition.in_sync_replicas,
        "moving": _moving(partition, broker_id),
        "log_end_offset": log.log_end_offset if log else None,
        "size_bytes": log.size_bytes if log else None,
        "offline_reason": log.offline_reason or None if log else None,
    }


def _moving(partition: "PartitionDescription", broker_id: int) -> str | None:
    """Return `here` if a move adds the replica, `away` if it removes it, else `None`."""
    if broker_id in partition.adding_replicas:
        return "here"
    return "away" if broker_id in partition.removing_replicas else None
