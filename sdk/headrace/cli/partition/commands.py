"""`headrace partition`: list, move, elect."""

from typing import Annotated

import typer

from headrace.cli.common.hidden_topics import warn_of_hidden
from headrace.cli.common.names import TopicFilter
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import Session, command
from headrace.cli.partition.elect import elect
from headrace.cli.partition.problems import MEANINGS, PartitionProblem, problems_of
from headrace.cli.partition.reassign import reassign

app = typer.Typer(
    help="Inspect and reassign partitions; elect their leaders.", no_args_is_help=True, rich_markup_mode=None
)
app.command("reassign")(reassign)
app.command("elect")(elect)

PROBLEM_HELP = "Only partitions with this problem; repeatable. " + "; ".join(
    f"{problem.value}: {meaning}" for problem, meaning in MEANINGS.items()
)


@app.command("list")
@command()
def list_partitions(
    session: Session,
    *,
    topics: TopicFilter = None,
    problems: Annotated[
        list[PartitionProblem] | None,
        typer.Option("--problem", case_sensitive=False, help=f"{PROBLEM_HELP}."),
    ] = None,
) -> None:
    """List partitions with their leader, replicas and problems.

    \b
    Examples:
      headrace partition list --topic clicks
      headrace partition list --problem offline --problem under_min_in_sync
      headrace partition list --problem moving --output json
    """
    with session.admin() as admin:
        cluster = admin.describe_cluster()
        found = [admin.describe_topic(topic) for topic in dict.fromkeys(topics)] if topics else admin.describe_topics()
    if problems and not topics:
        warn_of_hidden(session, cluster.count_hidden(found), "and their partitions may have problems")
    able = {broker.broker_id for broker in cluster.brokers if not broker.draining}
    rows: list[dict[str, JsonValue]] = []
    for topic in found:
        for each in topic.partitions:
            wrong = problems_of(each, able)
            if problems and not set(problems) & set(wrong):
                continue
            rows.append(
                {
                    "topic": topic.name,
                    "partition": each.partition,
                    "leader": each.leader_id if each.leader_id >= 0 else None,
                    "leader_epoch": each.leader_epoch,
                    "replicas": list(each.replicas),
                    "in_sync_replicas": list(each.in_sync_replicas),
                    "eligible_leaders": list(each.eligible_leaders),
                    "adding_replicas": list(each.adding_replicas),
                    "removing_replicas": list(each.removing_replicas),
                    "min_insync_replicas": each.min_insync_replicas,
                    "problems": [problem.value for problem in wrong],
                }
            )
    columns = (
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition"),
        Column("LEADER", "leader"),
        Column("EPOCH", "leader_epoch"),
        Column("REPLICAS", "replicas"),
        Column("IN SYNC", "in_sync_replicas"),
        Column("ELIGIBLE", "eligible_leaders", wide=True),
        Column("ADDING", "adding_replicas", wide=True),
        Column("REMOVING", "removing_replicas", wide=True),
        Column("MIN IN SYNC", "min_insync_replicas", wide=True),
        Column("PROBLEMS", "problems"),
    )
    session.show(Report(rows, (TableSection(columns, rows, empty="no partitions"),)))
