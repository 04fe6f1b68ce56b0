"""`headrace partition elect`: elect preferred replicas, or one that lacks records where no other can lead."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted, parse_topic_or_partition, where_text
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Column, JsonValue, Note, OutputFormat, Report, TableSection, render
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, command, tell
from headrace.cli.partition.replica_logs import gather_logs
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import LogInfo, PartitionChange

COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("LEADER", "leader"),
    Column("EPOCH", "leader_epoch"),
    Column("CHANGED", "changed"),
    Column("REFUSED", "error"),
)
CANDIDATE_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("BROKER", "broker_id"),
    Column("LOG END", "log_end_offset"),
    Column("HIGH WATERMARK", "high_watermark"),
    Column("BYTES", "size_bytes"),
)


@command()
def elect(
    session: Session,
    *,
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="Partitions or topics; the default is all (not with --unclean)."
        ),
    ] = None,
    preferred: Annotated[
        bool, typer.Option("--preferred", help="Elect the first in-sync replica in the assignment order (the default).")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect a replica that is not in sync, if no other can lead; records may be lost."
        ),
    ] = False,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", min=0, help="With --unclean: the new leader.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --unclean: do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Elect leaders.

    A preferred election moves leadership to the first replica of each partition if it is in sync. The leader stops
    appends for at most 100 ms until that replica has its whole log, and then hands over, so that no record is lost,
    even with acks=1. If the replica does not catch up in time, the leader stays and an error is printed.

    An unclean election is for partitions whose in-sync replicas are lost for good. It prints the remaining logs, asks
    for the topic's name, and elects a replica with a shorter log. Records that this log does not have are lost;
    consumers that have read them get an error.

    \b
    Examples:
      headrace partition elect
      headrace partition elect clicks
      headrace partition elect clicks:3 --unclean --dry-run
      headrace partition elect clicks:3 --unclean --broker 2
    """
    if preferred and unclean:
        raise UsageProblem("--preferred and --unclean exclude each other")
    if unclean and not partitions:
        raise UsageProblem("--unclean may lose records; name the partitions, for example clicks:3")
    if not unclean and (broker is not None or yes):
        raise UsageProblem("--broker and --yes require --unclean")
    with session.admin() as admin:
        wanted = _resolve(admin, partitions) if partitions else None
        if unclean and wanted is not None:
            candidates = _candidates(admin, wanted)
            if broker is None and dry_run:
                session.show(_candidate_report(candidates, ()))
                return
            _confirm_unclean(wanted, candidates, broker, is_agreed=yes or dry_run)
            results = admin.elect_leaders("unclean", wanted, broker_id=broker, validate_only=dry_run)
        else:
            results = admin.elect_leaders("preferred", wanted, validate_only=dry_run)
    _show_results(session, results, dry_run=dry_run)


def _confirm_unclean(
    wanted: Sequence[TopicPartition], candidates: "Sequence[LogInfo]", broker: int | None, *, is_agreed: bool
) -> None:
    """Show what an unclean election may lose, and ask, unless that `is_agreed`.

    Raises:
        UsageProblem: no broker was named, or standard input is not a terminal.
        CommandFailed: the answer was no.
    """
    if broker is None:
        longest = max(candidates, key=lambda log: log.log_end_offset, default=None)
        hint = f"{longest.broker_id}, which has the longest log" if longest else "ID; no replica responds"
        raise UsageProblem(f"name the new leader: --broker {hint}")
    # To stderr, because stdout is only for the result.
    report = _candidate_report(candidates, _losses(wanted, candidates, broker))
    print(render(report, OutputFormat.TABLE), end="", file=sys.stderr, flush=True)
    if not is_agreed:
        _ask(wanted)


def _resolve(admin: "Admin", texts: Sequence[str]) -> list[TopicPartition]:
    """Return the named partitions; a topic means all of its partitions."""
    found: list[TopicPartition] = []
    for topic, partition in map(parse_topic_or_partition, texts):
        if partition is not None:
            found.append(TopicPartition(topic, partition))
        else:
            found += [TopicPartition(topic, each.partition) for each in admin.describe_topic(topic).partitions]
    return list(dict.fromkeys(found))


def _candidates(admin: "Admin", wanted: Sequence[TopicPartition]) -> "list[LogInfo]":
    """Return the logs of the partitions on brokers that respond, the longest of each partition first."""
    brokers = [each.broker_id for each in admin.describe_cluster().brokers]
    found: list[LogInfo] = []
    for topic in sorted({where.topic for where in wanted}):
        logs, _ = gather_logs(admin, brokers, topic)
        found += [log for log in logs if (topic, log.partition) in wanted and not log.offline_reason]
    return sorted(found, key=lambda log: (log.topic, log.partition, -log.log_end_offset, log.broker_id))


def _candidate_report(candidates: "Sequence[LogInfo]", notes: Sequence[Note]) -> Report:
    rows: list[dict[str, JsonValue]] = [
        {
            "topic": log.topic,
            "partition": log.partition,
            "broker_id": log.broker_id,
            "log_end_offset": log.log_end_offset,
            "high_watermark": log.high_watermark,
            "size_bytes": log.size_bytes,
        }
        for log in candidates
    ]
    table = TableSection(CANDIDATE_COLUMNS, rows, empty="no replica of these partitions responds")
    return Report({"dry_run": True, "candidates": rows}, (table, *notes))


def _losses(wanted: Sequence[TopicPartition], candidates: "Sequence[LogInfo]", broker: int) -> list[Note]:
    """Return notes about records that are known to be lost if `broker` leads."""
    notes = []
    for where in wanted:
        logs = [log for log in candidates if (log.topic, log.partition) == where]
        own = next((log for log in logs if log.broker_id == broker), None)
        name = f"{where.topic}-{where.partition}"
        if own is None:
            notes.append(Note(f"{name}: broker {broker} has no replica that responds."))
            continue
        known = max(log.log_end_offset for log in logs)
        lacks = known - own.log_end_offset
        rest = f"; {counted(lacks, 'record')} are known to have been there" if lacks else ", if there were any"
        notes.append(Note(f"{name}: records from offset {own.log_end_offset} on are lost{rest}."))
    return notes


def _ask(wanted: Sequence[TopicPartition]) -> None:
    """Ask the user to type the names of the topics.

    Raises:
        UsageProblem: If standard input is not a terminal.
        CommandFailed: If the input differs.
    """
    if not sys.stdin.isatty():
        raise UsageProblem("an unclean election requires confirmation; pass --yes without a terminal")
    for topic in dict.fromkeys(where.topic for where in wanted):
        named = ", ".join(where_text(where) for where in wanted if where.topic == topic)
        print(f"Lose what these logs lack of {named}? Type the topic's name: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != topic:
            raise CommandFailed(ExitCode.FAILED, "nothing was elected")


def _show_results(session: Session, results: "Sequence[PartitionChange]", *, dry_run: bool) -> None:
    rows: list[dict[str, JsonValue]] = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "leader": each.leader_id if each.leader_id >= 0 else None,
            "leader_epoch": each.leader_epoch,
            "changed": each.error is None and not each.unchanged,
            "error": None if each.error is None else str(each.error),
        }
        for each in results
    ]
    changed, refused = (sum(bool(row[name]) for row in rows) for name in ("changed", "error"))
    verb = "would elect" if dry_run else "elected"
    sentence = Note(f"{verb} {counted(changed, 'leader')} of {counted(len(rows), 'partition')}")
    shown = [row for row in rows if row["changed"] or row["error"]]
    document: dict[str, JsonValue] = {"dry_run": dry_run, "partitions": rows}
    sections = (TableSection(COLUMNS, shown), sentence) if shown else (sentence,)
    if refused or not session.quiet:
        session.show(Report(document, sections))
    if refused:
        tell(f"{counted(refused, 'partition')} refused")
        raise CommandFailed(ExitCode.FAILED)
