"""`headrace broker delete-unclaimed`: delete logs from a broker's disk that the assignment does not give to it."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Column, JsonValue, bytes_text
from headrace.cli.common.session import CommandFailed, DryRun, Session, Yes, command, confirm

if TYPE_CHECKING:
    from headrace.client.admin.replication import UnclaimedLogInfo

UNCLAIMED_COLUMNS = (
    Column("UNCLAIMED TOPIC", "topic"),
    Column("TOPIC ID", "topic_id"),
    Column("PARTITION", "partition"),
    Column("BYTES", "size_bytes"),
    Column("KEPT BECAUSE", "kept_because"),
)


def unclaimed_row(log: "UnclaimedLogInfo") -> dict[str, JsonValue]:
    """Return an unclaimed log as a row of `broker describe` and `delete-unclaimed`."""
    return {
        "topic": log.topic or None,
        "topic_id": log.topic_id.hex(),
        "partition": log.partition,
        "size_bytes": log.size_bytes,
        "kept_because": log.kept_because or None,
    }


@command()
def delete_unclaimed(
    session: Session,
    *,
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id.")],
    topic: Annotated[str, typer.Option("--topic", help="Only the logs of this topic.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete logs that a broker keeps and that no assignment gives to it. Asks first on a terminal.

    `broker describe` lists them. A log stays if its partition is assigned to the broker, is being reassigned or has no
    leader, or if no topic has its id (`topic delete --unclaimed`). Exit code 1 if a log could not be deleted.

    \b
    Examples:
      headrace broker delete-unclaimed 2 --dry-run
      headrace broker delete-unclaimed 2 --topic clicks --yes
    """
    with session.admin() as admin:
        found = [log for log in admin.describe_unclaimed_logs(broker_id) if topic in ("", log.topic)]
        chosen = [log for log in found if not log.kept_because]
        kept = [log for log in found if log.kept_because]
        what = f"{counted(len(chosen), 'unclaimed log')}, {bytes_text(sum(log.size_bytes for log in chosen))},"
        if chosen and not dry_run:
            confirm(f"Delete {what} of broker {broker_id} with all records?", yes=yes, otherwise="nothing was deleted")
            results = admin.delete_broker_logs(broker_id, [(log.topic_id, log.partition) for log in chosen])
            chosen = [log for log in results if not log.kept_because]
            kept += [log for log in results if log.kept_because]
            what = f"{counted(len(chosen), 'unclaimed log')}, {bytes_text(sum(log.size_bytes for log in chosen))},"
    for log in kept:
        session.note(f"kept {log.topic or log.topic_id.hex()}-{log.partition}: {log.kept_because}")
    document: dict[str, JsonValue] = {
        "broker_id": broker_id,
        "deleted": [unclaimed_row(log) for log in chosen],
        "kept": [unclaimed_row(log) for log in kept],
        "dry_run": dry_run,
    }
    session.show_change(document, f"{'would delete' if dry_run else 'deleted'} {what} of broker {broker_id}")
    if kept and not dry_run:
        raise CommandFailed(ExitCode.FAILED, f"broker {broker_id} keeps {counted(len(kept), 'unclaimed log')}")
