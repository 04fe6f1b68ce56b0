"""`headrace table purge`: remove deleted rows from the files of every replica, at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Column, JsonValue, Note, Report, TableSection
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, Yes, command, confirm

if TYPE_CHECKING:
    from headrace.client.table.purges import PurgedReplica
    from headrace.client.table.table import Table

LATER = "When such a broker is back, run the command again: until then its files may have the rows."


@command()
def purge(
    session: Session,
    *,
    table: Topic,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys of rows.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="All rows whose keys begin with this, instead of KEY.")
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="All that is deleted already or has expired, instead of KEY.")
    ] = False,
    wait_timeout: Annotated[
        float, typer.Option("--wait-timeout", min=1, metavar="SECONDS", help="Maximum time for each replica.")
    ] = 600.0,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete rows, and remove their values and keys from the files of every replica, at once. Asks first on a terminal.

    Each replica compacts its log for that. Exit code 1: a replica is away, or was not done in time; it is named.

    \b
    Examples:
      headrace table purge users u17
      headrace table purge users --prefix tenant-5/ --dry-run
      headrace table purge users --deleted --yes --output json
    """
    if bool(keys) + (prefix is not None) + deleted != 1:
        raise UsageProblem("give KEY, or --prefix, or --deleted")
    what = _subject(keys, prefix)
    with session.table(table, value_deserializer="bytes") as rows:
        if dry_run:
            _show_plan(session, table, _existing(rows, keys, prefix), what)
            return
        confirm(f"Purge {what} of table {table}? It cannot be undone.", yes=yes, otherwise="nothing was purged")
        done: list[PurgedReplica] = []
        for replica in rows.purge(keys or (), prefix=prefix, deleted=deleted, timeout=wait_timeout):
            done.append(replica)
            result = f"removed {counted(replica.removed_records, 'record')}" if replica.done else replica.problem
            session.note(f"partition {replica.partition}, broker {replica.broker_id}: {result}")
    _show_result(session, table, what, done)


def _subject(keys: Sequence[str] | None, prefix: str | None) -> str:
    if keys:
        return counted(len(keys), "row")
    return "what is deleted" if prefix is None else f"all rows that begin with {prefix!r}"


def _existing(rows: "Table", keys: Sequence[str] | None, prefix: str | None) -> int:
    if keys:
        return sum(row is not None for row in rows.get_many(keys))
    return 0 if prefix is None else sum(1 for _ in rows.scan(prefix=prefix))


def _show_plan(session: Session, table: str, existing: int, what: str) -> None:
    with session.admin() as admin:
        partitions = admin.describe_topic(table).partitions
    replicas: list[dict[str, JsonValue]] = [
        {"partition": each.partition, "broker_id": broker_id, "in_sync": broker_id in each.in_sync_replicas}
        for each in partitions
        for broker_id in each.replicas
    ]
    away = sorted({str(each["broker_id"]) for each in replicas if not each["in_sync"]})
    document: dict[str, JsonValue] = {
        "table": table, "dry_run": True, "existing_rows": existing, "replicas": [dict(each) for each in replicas],
    }  # fmt: skip
    sentence = (
        f"would purge {what} of table {table}: delete {counted(existing, 'existing row')}, then compact up to "
        f"{counted(len(replicas), 'replica')}"
    )
    notes = [Note(sentence)]
    if away:
        notes.append(Note(f"not in sync now, and waited for: {', '.join(f'broker {each}' for each in away)}"))
    session.show(Report(document, tuple(notes)))


def _show_result(session: Session, table: str, what: str, done: Sequence["PurgedReplica"]) -> None:
    lines: list[dict[str, JsonValue]] = [dict(replica._asdict()) for replica in done]
    document: dict[str, JsonValue] = {
        "table": table, "dry_run": False, "done": all(replica.done for replica in done), "replicas": [*lines],
    }  # fmt: skip
    shown = (
        Column("PARTITION", "partition"),
        Column("BROKER", "broker_id"),
        Column("DONE", "done"),
        Column("REMOVED", "removed_records"),
        Column("PROBLEM", "problem"),
    )
    session.show(Report(document, (TableSection(shown, lines, empty="no replicas"),)))
    missing = [replica for replica in done if not replica.done]
    if missing:
        brokers = ", ".join(f"broker {each}" for each in sorted({replica.broker_id for replica in missing}))
        raise CommandFailed(ExitCode.FAILED, f"{what} may still be in files of {brokers}. {LATER}")
