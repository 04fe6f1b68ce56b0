"""`headrace broker`: list."""

from collections import Counter

import typer

from headrace.cli.cluster import BROKER_COLUMNS, broker_row
from headrace.cli.rendering import Column, JsonValue, Report, Table
from headrace.cli.session import Session, command

app = typer.Typer(help="Look at the brokers.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Keep `list` a command of its own although it is the only one."""


@app.command("list")
@command()
def list_brokers(session: Session) -> None:
    """List the brokers that are alive, with the partitions that they lead and hold."""
    with session.admin() as admin:
        brokers = admin.describe_cluster().brokers
        partitions = [partition for topic in admin.describe_topics() for partition in topic.partitions]
    leads = Counter(partition.leader_id for partition in partitions)
    holds = Counter(broker_id for partition in partitions for broker_id in partition.replicas)
    rows: list[dict[str, JsonValue]] = [
        {**broker_row(broker), "leads": leads[broker.broker_id], "replicas": holds[broker.broker_id]}
        for broker in brokers
    ]
    columns = (*BROKER_COLUMNS, Column("LEADS", "leads"), Column("REPLICAS", "replicas"))
    session.show(Report(rows, (Table(columns, rows, empty="no brokers"),)))
