"""`headrace partition reassign`: plan, start, follow and cancel reassignments."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import broker_list, counted, parse_rate, parse_topic_or_partition
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.hidden_topics import HIDDEN_ACTION, hidden_text, warn_of_hidden
from headrace.cli.common.names import TopicFilter
from headrace.cli.common.rendering import JsonValue
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, Yes, command
from headrace.cli.common.watching import Interval, WaitTimeout
from headrace.cli.partition.reassign_run import MoveRun, Throttle, Watch, follow, tell_refusals
from headrace.cli.partition.reassign_sources import SOURCES, ClusterLayout, choose_planner, cluster_layout
from headrace.cli.partition.replica_logs import gather_logs
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import PartitionChange, Reassignment


@command()
def reassign(
    session: Session,
    *,
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC:PARTITION", help="Partitions for --replicas and --cancel.")
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas", metavar="ID,...", help="New replicas of these partitions; the first is the preferred leader."
        ),
    ] = None,
    topics: TopicFilter = None,
    to_brokers: Annotated[
        str | None, typer.Option("--to-brokers", metavar="ID,...", help="Spread the topics over these brokers only.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Plan printed by --dry-run --output json.")
    ] = None,
    add_brokers: Annotated[
        list[int] | None,
        typer.Option("--add-broker", metavar="ID", help="Move an even share of replicas to this broker; repeatable."),
    ] = None,
    remove_brokers: Annotated[
        list[int] | None,
        typer.Option("--remove-broker", metavar="ID", help="Move all replicas off this broker; repeatable."),
    ] = None,
    throttle: Throttle = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel reassignments: of these partitions, these topics, or all.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    watch: Watch = False,
    interval: Interval = 1.0,
    wait_timeout: WaitTimeout = None,
) -> None:
    """Move replicas to other brokers. Prints the plan, which the cluster has checked, and asks first on a terminal.

    The plan copies as little as possible, keeps each partition on as many racks as before, and is deterministic. New
    replicas copy while the old ones serve; the old ones are removed when the new ones are in sync. Without a target the
    reassignments in progress are shown, and --throttle changes their rate.

    \b
    Examples:
      headrace partition reassign clicks:0 --replicas 1,2,3 --dry-run
      headrace partition reassign --topic clicks --to-brokers 1,2,3 --watch
      headrace partition reassign --add-broker 4 --dry-run --output json > plan.json
      headrace partition reassign --plan plan.json --throttle 50MiB
      headrace partition reassign --remove-broker 2 --watch
      headrace partition reassign --watch
      headrace partition reassign --throttle 10MiB
      headrace partition reassign --cancel --topic clicks
    """
    named, chosen = partitions or [], topics or []
    rate = parse_rate(throttle) if throttle is not None else 0
    if cancel:
        if any(each is not None for each in (replicas, to_brokers, plan, throttle)) or add_brokers or remove_brokers:
            raise UsageProblem("--cancel takes partitions or --topic, and no target of a reassignment")
        planner = None
    else:
        planner = choose_planner(named, chosen, replicas, to_brokers, plan, add_brokers or (), remove_brokers or ())
    if (yes or dry_run) and not (cancel or planner or rate):
        raise UsageProblem(f"nothing to do; give {SOURCES}, --throttle or --cancel")
    with session.admin() as admin:
        if cancel:
            _cancel(session, admin, named, chosen, dry_run=dry_run)
        elif planner is not None:
            run = MoveRun(session, admin, rate, yes=yes, dry_run=dry_run)
            layout, hidden = _layout(admin, chosen)
            if add_brokers:
                warn_of_hidden(session, hidden, "and the plan neither counts nor moves their replicas")
            run.start(planner(layout), watch=watch, interval=interval, wait_timeout=wait_timeout)
            if hidden and remove_brokers:
                brokers = broker_list(remove_brokers)
                message = f"{hidden_text(hidden)}, and {brokers} may hold replicas of them: {HIDDEN_ACTION}"
                raise CommandFailed(ExitCode.FAILED, message)
        else:
            if rate:
                _change_speed(session, admin, chosen, rate, dry_run=dry_run)
            if watch or not rate:
                under_way = [TopicPartition(each.topic, each.partition) for each in _under_way(admin, chosen)]
                follow(session, admin, under_way, interval, wait_timeout if watch else 0.0)


def _layout(admin: "Admin", topics: Sequence[str]) -> tuple[ClusterLayout, int]:
    """Return the layout of some topics or all, and, for all, how many are not shown to the caller."""
    cluster = admin.describe_cluster()
    found = [admin.describe_topic(topic) for topic in dict.fromkeys(topics)] if topics else admin.describe_topics()
    logs, _ = gather_logs(admin, (broker.broker_id for broker in cluster.brokers))
    return cluster_layout(cluster.brokers, found, logs), 0 if topics else cluster.count_hidden(found)


def _cancel(session: Session, admin: "Admin", named: Sequence[str], topics: Sequence[str], *, dry_run: bool) -> None:
    wanted = [parse_topic_or_partition(each) for each in (*named, *topics)]
    under_way = [TopicPartition(each.topic, each.partition) for each in _under_way(admin, ())]
    chosen = [
        where
        for where in under_way
        if not wanted or (where.topic, None) in wanted or (where.topic, where.partition) in wanted
    ]
    for topic, partition in wanted:
        if not any(where.topic == topic and partition in (None, where.partition) for where in chosen):
            session.note(f"{topic}{'' if partition is None else f'-{partition}'} is not moving")
    results = admin.cancel_reassignment(chosen, validate_only=dry_run)
    _show_changes(session, results, "would cancel" if dry_run else "cancelled", dry_run=dry_run)


def _change_speed(session: Session, admin: "Admin", topics: Sequence[str], rate: int, *, dry_run: bool) -> None:
    targets = {TopicPartition(each.topic, each.partition): each.target for each in _under_way(admin, topics)}
    results = admin.reassign_partitions(targets, copy_bytes_per_second=rate, validate_only=dry_run)
    verb = "would change the speed of" if dry_run else "changed the speed of"
    _show_changes(session, results, verb, dry_run=dry_run)


def _show_changes(session: Session, results: "Sequence[PartitionChange]", verb: str, *, dry_run: bool) -> None:
    """Print the moves in progress that were changed."""
    done = [each for each in results if each.error is None]
    document: dict[str, JsonValue] = {
        "dry_run": dry_run,
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "replicas": list(each.replicas),
                "error": None if each.error is None else str(each.error),
            }
            for each in results
        ],
    }
    names = ", ".join(f"{each.topic}-{each.partition}" for each in done)
    session.show_change(document, f"{verb} {counted(len(done), 'move')}{f': {names}' if names else ''}")
    tell_refusals(session, results)


def _under_way(admin: "Admin", topics: Sequence[str]) -> "list[Reassignment]":
    return admin.list_reassignments(list(dict.fromkeys(topics)) or None)
