"""Start of planned moves, with a plan first, and their progress: for `partition reassign` and `cluster balance`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import (
    Column,
    JsonValue,
    Note,
    OutputFormat,
    Report,
    Section,
    TableSection,
    bytes_text,
    render,
)
from headrace.cli.common.session import CommandFailed, Session, confirm
from headrace.cli.common.watching import Screen, rounds
from headrace.cli.partition.reassign_progress import MoveProgress
from headrace.cli.partition.replica_logs import gather_logs
from headrace.placement.moves import PlannedMove
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import PartitionChange

Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Copy rate limit of each new replica in bytes per second, for example 50MiB.",
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show the progress until all reassignments are done.")]

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


@dataclass(frozen=True, slots=True)
class MoveRun:
    """Options of a command that starts moves."""

    session: Session
    admin: "Admin"
    # Copy rate of each new replica in bytes per second; 0 means unlimited.
    rate: int
    _: KW_ONLY
    yes: bool
    dry_run: bool
    # Fields and sections of the plan before those of the moves.
    fields: Mapping[str, JsonValue] = field(default_factory=dict)
    heading: Sequence[Section] = ()

    def start(self, moves: Sequence[PlannedMove], *, watch: bool, interval: float, wait_timeout: float | None) -> None:
        """Ask on a terminal, request the moves, and show the plan, or with `watch` the progress until they are done.

        Raises:
            CommandFailed: If the user declines, the cluster rejects a move, or the moves take longer than the timeout.
        """
        if moves and not self.yes and not self.dry_run and sys.stdin.isatty():
            self._confirm(moves)
        results = self._request(moves, dry_run=self.dry_run)
        if watch and not self.dry_run:
            accepted = [TopicPartition(each.topic, each.partition) for each in results if each.error is None]
            follow(self.session, self.admin, accepted, interval, wait_timeout)
        else:
            self.session.show(self._report(moves, results, dry_run=self.dry_run))
        tell_refusals(self.session, results)

    def _confirm(self, moves: Sequence[PlannedMove]) -> None:
        """Show the plan as the cluster has checked it, and ask whether to start."""
        checked = self._request(moves, dry_run=True)
        # To stderr, because stdout is only for the result.
        plan_text = render(self._report(moves, checked, dry_run=True), OutputFormat.TABLE)
        print(plan_text, end="", file=sys.stderr)
        confirm(f"Start {counted(len(moves), 'move')}?", yes=False, otherwise="nothing was changed")

    def _request(self, moves: Sequence[PlannedMove], *, dry_run: bool) -> "list[PartitionChange]":
        """Request the moves; in a dry run the cluster only checks them."""
        results: list[PartitionChange] = []
        for begin in range(0, len(moves), REQUEST_PARTITIONS):
            targets = {each.where: each.after for each in moves[begin : begin + REQUEST_PARTITIONS]}
            results += self.admin.reassign_partitions(targets, copy_bytes_per_second=self.rate, validate_only=dry_run)
        return results

    def _report(self, moves: Sequence[PlannedMove], results: "Sequence[PartitionChange]", *, dry_run: bool) -> Report:
        refused = {TopicPartition(each.topic, each.partition): each for each in results if each.error is not None}
        rows = [_row(each, refused) for each in moves]
        copies, copy_bytes = sum(len(each.adding) for each in moves), sum(each.copy_bytes for each in moves)
        document: dict[str, JsonValue] = {
            **self.fields,
            "dry_run": dry_run,
            "copies": copies,
            "copy_bytes": copy_bytes,
            "copy_bytes_per_second": self.rate,
            "partitions": rows,
        }
        columns = [Column(each.heading, each.field, wide=each.wide and not refused) for each in PLAN_COLUMNS]
        sections: list[Section] = [*self.heading, *([TableSection(columns, rows)] if rows else [])]
        speed = f" at no more than {bytes_text(self.rate)}/s each" if self.rate else ""
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


def tell_refusals(session: Session, results: "Sequence[PartitionChange]") -> None:
    """Print the rejected partitions with the reasons.

    Raises:
        CommandFailed: If there are any.
    """
    refused = [each for each in results if each.error is not None]
    for each in refused:
        session.note(f"{each.topic}-{each.partition}: {each.error}")
    if refused:
        raise CommandFailed(
            ExitCode.FAILED, f"{len(refused)} of {counted(len(results), 'partition')} refused; the others are as shown"
        )


def follow(
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
