"""`headrace partition reassign`: plan, start, follow and cancel reassignments."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted, parse_rate, parse_topic_or_partition
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import TopicFilter
from headrace.cli.common.rendering import (
    Column,
    JsonValue,
    Note,
    OutputFormat,
    Report,
    Section,
    Table,
    bytes_text,
    render,
)
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, Yes, command, confirm
from headrace.cli.common.watching import Interval, Screen, WaitTimeout, rounds
from headrace.cli.partition.reassign_progress import MoveProgress
from headrace.cli.partition.reassign_sources import SOURCES, ClusterLayout, choose_planner, cluster_layout
from headrace.cli.partition.replica_logs import gather_logs
from headrace.placement.moves import PlannedMove
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import PartitionChange, Reassignment

REQUEST_PARTITIONS = 100
"""Maximum partitions per request, so that it completes in time."""

PLAN_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("FROM", "before"),
    Column("TO", "replicas"),
    Column("COPIED BY", "adding"),
    Column("GIVEN UP BY", "removing"),
    Column("BYTES", "copy_bytes"),
    Column("REFUSED", "error", wide=True),
)


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
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="RATE",
            help="Copy rate limit of each new replica in bytes per second, for example 50MiB.",
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel reassignments: of these partitions, these topics, or all.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the progress until all reassignments are done.")
    ] = False,
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
            moves = planner(_layout(admin, chosen))
            if moves and not yes and not dry_run and sys.stdin.isatty():
                _confirm(admin, moves, rate)
            results = _request(admin, moves, rate, dry_run=dry_run)
            if watch and not dry_run:
                accepted = [TopicPartition(each.topic, each.partition) for each in results if each.error is None]
                _follow(session, admin, accepted, interval, wait_timeout)
            else:
                session.show(_plan_report(moves, results, rate, dry_run=dry_run))
            _tell_refusals(session, results)
        else:
            if rate:
                _change_speed(session, admin, chosen, rate, dry_run=dry_run)
            if watch or not rate:
                under_way = [TopicPartition(each.topic, each.partition) for each in _under_way(admin, chosen)]
                _follow(session, admin, under_way, interval, wait_timeout if watch else 0.0)


def _layout(admin: "Admin", topics: Sequence[str]) -> ClusterLayout:
    cluster = admin.describe_cluster()
    found = [admin.describe_topic(topic) for topic in dict.fromkeys(topics)] if topics else admin.describe_topics()
    logs, _ = gather_logs(admin, (broker.broker_id for broker in cluster.brokers))
    return cluster_layout(cluster.brokers, found, logs)


def _confirm(admin: "Admin", moves: Sequence[PlannedMove], rate: int) -> None:
    """Show the plan as the cluster has checked it, and ask whether to start."""
    checked = _request(admin, moves, rate, dry_run=True)
    # To stderr, because stdout is only for the result.
    plan_text = render(_plan_report(moves, checked, rate, dry_run=True), OutputFormat.TABLE)
    print(plan_text, end="", file=sys.stderr)
    confirm(f"Start {counted(len(moves), 'move')}?", yes=False, otherwise="nothing was changed")


def _request(admin: "Admin", moves: Sequence[PlannedMove], rate: int, *, dry_run: bool) -> "list[PartitionChange]":
    """Request the moves; in a dry run the cluster only checks them."""
    results: list[PartitionChange] = []
    for begin in range(0, len(moves), REQUEST_PARTITIONS):
        targets = {each.where: each.after for each in moves[begin : begin + REQUEST_PARTITIONS]}
        results += admin.reassign_partitions(targets, copy_bytes_per_second=rate, validate_only=dry_run)
    return results


def _plan_report(
    moves: Sequence[PlannedMove], results: "Sequence[PartitionChange]", rate: int, *, dry_run: bool
) -> Report:
    refused = {TopicPartition(each.topic, each.partition): each for each in results if each.error is not None}
    rows = [_row(each, refused) for each in moves]
    copies, copy_bytes = sum(len(each.adding) for each in moves), sum(each.copy_bytes for each in moves)
    document: dict[str, JsonValue] = {
        "dry_run": dry_run,
        "copies": copies,
        "copy_bytes": copy_bytes,
        "copy_bytes_per_second": rate,
        "partitions": rows,
    }
    columns = [Column(each.heading, each.field, wide=each.wide and not refused) for each in PLAN_COLUMNS]
    sections: list[Section] = [Table(columns, rows)] if rows else []
    speed = f" at no more than {bytes_text(rate)}/s each" if rate else ""
    verb = "would start" if dry_run else "started"
    sections.append(
        Note(
            f"{verb} {counted(len(moves) - len(refused), 'move')}: {counted(copies, 'replica')} to copy, "
            f"{bytes_text(copy_bytes)}{speed}"
            if moves
            else "nothing to move"
        )
    )
    return Report(document, sections)


def _row(planned: PlannedMove, refused: "dict[TopicPartition, PartitionChange]") -> dict[str, JsonValue]:
    change = refused.get(planned.where)
    return {
        "topic": planned.where.topic,
        "partition": planned.where.partition,
        "before": list(planned.before),
        "replicas": list(planned.after),
        "adding": list(planned.adding),
        "removing": list(planned.removing),
        "copy_bytes": planned.copy_bytes,
        "error": str(change.error) if change else None,
    }


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
    _tell_refusals(session, results)


def _tell_refusals(session: Session, results: "Sequence[PartitionChange]") -> None:
    refused = [each for each in results if each.error is not None]
    for each in refused:
        session.note(f"{each.topic}-{each.partition}: {each.error}")
    if refused:
        raise CommandFailed(
            ExitCode.FAILED, f"{len(refused)} of {counted(len(results), 'partition')} refused; the others are as shown"
        )


def _under_way(admin: "Admin", topics: Sequence[str]) -> "list[Reassignment]":
    return admin.list_reassignments(list(dict.fromkeys(topics)) or None)


def _follow(
    session: Session,
    admin: "Admin",
    partitions: Sequence[TopicPartition],
    interval: float,
    wait_timeout: float | None,
) -> None:
    """Show the progress of moves until they are done or the timeout has passed; `0` shows it once."""
    from headrace.wire.errors import HeadraceError, UnknownTopicError

    progress, screen = MoveProgress(partitions), Screen(session.output)
    topics, is_away = sorted({where.topic for where in partitions}), False
    for elapsed in rounds(interval, wait_timeout):
        try:
            moves = admin.list_reassignments(topics)
            holders = sorted({broker_id for each in moves for broker_id in (each.leader_id, *each.adding)} - {-1})
            logs, _ = gather_logs(admin, holders)
        except HeadraceError as error:
            # Moves outlast a coordinator failure, so the error is only fatal without a wait.
            if wait_timeout == 0.0 or isinstance(error, UnknownTopicError):
                raise
            if not is_away:
                session.note(f"still watching: {error.message}")
            is_away = True
            continue
        is_away = False
        progress.observe(elapsed, moves, logs)
        if wait_timeout == 0.0:
            session.show(progress.report())
            return
        if not session.quiet:
            screen.draw(progress.report())
        if progress.done:
            return
    raise CommandFailed(ExitCode.TIMED_OUT, "the moves are not done yet; they continue")
