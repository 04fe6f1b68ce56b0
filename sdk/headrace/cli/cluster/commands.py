"""`headrace cluster`: describe, health, balance, log-level, dump."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.broker.rows import BROKER_COLUMNS, broker_row
from headrace.cli.cluster.balance import balance
from headrace.cli.cluster.cluster_health import health
from headrace.cli.cluster.log_level import log_level
from headrace.cli.common.rendering import Column, Facts, JsonValue, Report, TableSection
from headrace.cli.common.session import Session, command

if TYPE_CHECKING:
    from headrace.client.admin.rpc import ClusterDescription

COORDINATOR_COLUMNS = (
    Column("COORDINATOR", "coordinator_id"),
    Column("ADDRESS", "address"),
    Column("CONTROLLER", "controller"),
    Column("VERSION", "version"),
)

app = typer.Typer(help="Inspect and balance the whole cluster.", no_args_is_help=True, rich_markup_mode=None)

app.command("health")(health)
app.command("balance")(balance)
app.command("log-level")(log_level)


@app.command("describe")
@command()
def describe(session: Session) -> None:
    """Show the cluster's id, controller, servers and counts.

    \b
    Examples:
      headrace cluster describe
      headrace cluster describe --output json
    """
    with session.admin() as admin:
        session.show(_cluster_report(admin.describe_cluster()))


def _cluster_report(found: "ClusterDescription") -> Report:
    brokers = [broker_row(broker) for broker in found.brokers]
    coordinators: list[dict[str, JsonValue]] = [
        {
            "coordinator_id": each.coordinator_id,
            "address": each.address,
            "version": each.version,
            "controller": each.coordinator_id == found.controller_id,
        }
        for each in found.coordinators
    ]
    document: dict[str, JsonValue] = {
        "cluster_id": found.cluster_id,
        "generation": found.generation,
        "format_version": found.format_version,
        "controller_id": found.controller_id or None,
        "controller_epoch": found.controller_epoch,
        "topics": found.topics,
        "partitions": found.partitions,
        "offline_partitions": found.offline_partitions,
        "under_replicated_partitions": found.under_replicated_partitions,
        "etcd_version": found.etcd_version,
        "revision": found.revision,
        "undecodable_keys": found.undecodable_keys,
        "brokers": brokers,
        "coordinators": coordinators,
    }
    facts = Facts(
        (
            ("Cluster", found.cluster_id),
            ("Generation", found.generation),
            ("Controller", f"{found.controller_id} (epoch {found.controller_epoch})" if found.controller_id else None),
            ("Topics", found.topics),
            ("Partitions", found.partitions),
            ("Offline", found.offline_partitions),
            ("Under-replicated", found.under_replicated_partitions),
            ("etcd", f"{found.etcd_version} at revision {found.revision}"),
        )
    )
    tables = (
        TableSection(COORDINATOR_COLUMNS, coordinators, empty="no coordinators"),
        TableSection(BROKER_COLUMNS, brokers, empty="no brokers"),
    )
    return Report(document, (facts, *tables))


@app.command("dump")
@command()
def dump(
    session: Session,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys with this prefix, relative to the prefix of the cluster.")
    ] = "",
) -> None:
    """Print all keys of the cluster in etcd, decoded.

    \b
    Examples:
      headrace cluster dump
      headrace cluster dump --prefix brokers/ --output json
    """
    with session.admin() as admin:
        rows: list[dict[str, JsonValue]] = [
            {
                "key": entry.key,
                "value": json.loads(entry.value_json) if entry.value_json else None,
                "create_revision": entry.create_revision,
                "mod_revision": entry.mod_revision,
                "version": entry.version,
                "lease_id": entry.lease_id or None,
            }
            for entry in admin.dump(prefix)
        ]
    shown = [{**row, "value": json.dumps(row["value"], ensure_ascii=False)} for row in rows]
    columns = (
        Column("REVISION", "mod_revision"),
        Column("CREATED", "create_revision", wide=True),
        Column("VERSION", "version", wide=True),
        Column("LEASE", "lease_id", wide=True),
        Column("KEY", "key"),
        Column("VALUE", "value"),
    )
    session.show(Report(rows, (TableSection(columns, shown, empty="no keys"),)))
