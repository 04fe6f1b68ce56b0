"""`headrace table`: create, describe, put, get, delete, scan, count, purge."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted, parse_configs
from headrace.cli.common.bytes_text import to_json
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.moments import moment_text
from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Column, Facts, JsonValue, Note, Report, TableSection
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, Yes, command, confirm
from headrace.cli.common.topic_options import Config, NewPartitions, ReplicationFactor
from headrace.cli.records.offset_plan import parse_duration
from headrace.cli.table.describe import describe
from headrace.cli.table.purge import purge
from headrace.display.visible_text import to_line

if TYPE_CHECKING:
    from headrace.client.table.rows import Row

app = typer.Typer(help="Create tables, and read and write their rows.", no_args_is_help=True, rich_markup_mode=None)

app.command("purge")(purge)

NewTable = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The row's key.")]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", metavar="N", min=-1, help="Only if the row has this version; -1: if there is none."),
]
Columns = Annotated[
    list[str] | None, typer.Option("--column", "-c", metavar="NAME", help="A column to read, not all; repeatable.")
]
Replica = Annotated[
    bool, typer.Option("--replica", help="Read from any in-sync replica, which may not have the last writes.")
]


@app.command("create")
@command(makes_directory=True)
def create(
    session: Session,
    *,
    table: NewTable,
    partitions: NewPartitions = 0,
    replication_factor: ReplicationFactor = 0,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Delete columns after this time, such as 30d or 12h.")
    ] = None,
    config: Config = None,
    dry_run: DryRun = False,
) -> None:
    """Create a table: a topic with cleanup_policy=compact and table=yes.

    \b
    Examples:
      headrace table create users --partitions 6
      headrace table create sessions --ttl 12h
    """
    configs = {"cleanup_policy": "compact", "table": "yes", **parse_configs(config)}
    if ttl is not None:
        configs["table_ttl_ms"] = str(_milliseconds(ttl))
    with session.admin() as admin:
        made = admin.create_topic(table, partitions, replication_factor, configs, validate_only=dry_run)
    for warning in made.warnings:
        session.note(f"warning: {warning}")
    size = f"{counted(len(made.partitions), 'partition')}, {counted(made.replication_factor, 'replica')} each"
    document: dict[str, JsonValue] = {
        "name": table,
        "topic_id": None if dry_run else made.topic_id.hex(),
        "partitions": len(made.partitions),
        "replication_factor": made.replication_factor,
        "created": not dry_run,
        "dry_run": dry_run,
    }
    session.show_change(document, f"{'would create' if dry_run else 'created'} table {table} ({size})")


app.command("describe")(describe)


@app.command("put")
@command()
def put(
    session: Session,
    *,
    table: Topic,
    key: Key,
    columns: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Columns to set.")],
    if_version: IfVersion = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Delete them after this time, such as 30d or 12h.")
    ] = None,
) -> None:
    """Set columns of a row, all of them or none; others stay as they are. Waits until all in-sync replicas have them.

    \b
    Examples:
      headrace table put users u17 name=Ada plan=pro
      headrace table put users u17 plan=free --if-version 4711
      headrace table put sessions s1 user=u17 --ttl 12h
    """
    values = _parse_columns(columns)
    time = None if ttl is None else timedelta(milliseconds=_milliseconds(ttl))
    with session.table(table) as rows:
        version = rows.put(key, values, if_version=if_version, ttl=time)
    session.show_change({"key": key, "version": version}, f"put {key}, version {version}")


@app.command("get")
@command()
def get(
    session: Session,
    *,
    table: Topic,
    key: Key,
    columns: Columns = None,
    start: Annotated[str | None, typer.Option("--start", metavar="NAME", help="First column.")] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="NAME", help="Column before which to stop.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of columns.")] = None,
    replica: Replica = False,
) -> None:
    """Print a row; a row that does not exist is exit code 4.

    \b
    Examples:
      headrace table get users u17
      headrace table get users u17 --column plan --output json
      headrace table get inbox ada --start 2026-11 --limit 20
    """
    if columns and (start is not None or end is not None):
        raise UsageProblem("--column excludes --start and --end")
    with session.table(table, value_deserializer="bytes") as rows:
        row = rows.get(key, columns or None, start=start, end=end, limit=limit, consistency=_consistency(replica))
    if row is None:
        raise CommandFailed(ExitCode.NOT_FOUND, f"table {table} has no row {key!r}")
    shown = (Column("COLUMN", "column"), Column("VALUE", "value"), Column("VERSION", "version"))
    times = Column("WRITTEN", "written", wide=True)
    lines: list[dict[str, JsonValue]] = [
        {
            "column": name,
            "value": to_line(column.value),
            "version": column.version,
            "written": moment_text(column.timestamp_ms),
        }
        for name, column in row.columns.items()
    ]
    more = () if row.next_column is None else (Note(f"there are more columns, from {row.next_column!r} on"),)
    session.show(Report(_document(row), (TableSection((*shown, times), lines, empty="no such columns"), *more)))


@app.command("scan")
@command()
def scan(
    session: Session,
    *,
    table: Topic,
    prefix: Annotated[str, typer.Option("--prefix", help="Only rows whose keys begin with this.")] = "",
    start: Annotated[str, typer.Option("--start", metavar="KEY", help="First key.")] = "",
    end: Annotated[str | None, typer.Option("--end", metavar="KEY", help="Key before which to stop.")] = None,
    columns: Columns = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 100,
    replica: Replica = False,
) -> None:
    """Print rows: partition after partition, in the order of their keys within each.

    \b
    Examples:
      headrace table scan users --prefix u1
      headrace table scan users --column plan --limit 1000 --output json
    """
    with session.table(table, value_deserializer="bytes") as rows:
        found = list(
            islice(
                rows.scan(
                    prefix=prefix,
                    start=start,
                    end=end,
                    columns=columns or None,
                    page_rows=min(limit + 1, 500),
                    consistency=_consistency(replica),
                ),
                limit + 1,
            )
        )
    more = (Note(f"there are more rows; raise --limit {limit}"),) if len(found) > limit else ()
    found = found[:limit]
    shown = (Column("KEY", "key"), Column("COLUMNS", "columns"), Column("VERSION", "version"))
    lines: list[dict[str, JsonValue]] = [
        {
            "key": to_line(row.key),
            "columns": "  ".join(f"{name}={to_line(value)}" for name, value in row.items()),
            "version": row.version,
        }
        for row in found
    ]
    documents: JsonValue = [_document(row) for row in found]
    session.show(Report(documents, (TableSection(shown, lines, empty="no rows"), *more)))


@app.command("delete")
@command()
def delete(
    session: Session, *, table: Topic, key: Key, columns: Columns = None, if_version: IfVersion = None, yes: Yes = False
) -> None:
    """Delete a row, or some of its columns. Asks first on a terminal.

    \b
    Examples:
      headrace table delete users u17
      headrace table delete users u17 --column plan --yes
    """
    what = f"row {key}" if not columns else f"{', '.join(columns)} of row {key}"
    confirm(f"Delete {what} of table {table}?", yes=yes, otherwise="nothing was deleted")
    with session.table(table) as rows:
        rows.delete(key, columns or None, if_version=if_version)
    document: dict[str, JsonValue] = {"key": key, "deleted_columns": list(columns) if columns else None}
    session.show_change(document, f"deleted {what}")


@app.command("count")
@command()
def count(session: Session, *, table: Topic, replica: Replica = False) -> None:
    """Print the numbers of rows and columns.

    \b
    Examples:
      headrace table count users
      headrace table count users --replica --output json
    """
    with session.table(table) as rows:
        counts = rows.count(consistency=_consistency(replica))
    document: dict[str, JsonValue] = {"rows": counts.rows, "columns": counts.columns}
    session.show(Report(document, (Facts((("rows", counts.rows), ("columns", counts.columns))),)))


def _document(row: "Row") -> JsonValue:
    columns: dict[str, JsonValue] = {
        name: {"value": to_json(column.value), "version": column.version, "timestamp_ms": column.timestamp_ms}
        for name, column in row.columns.items()
    }
    return {
        "key": to_json(row.key),
        "version": row.version,
        "columns": columns,
        "next_column": row.next_column,
        "as_of_offset": row.as_of_offset,
    }


def _consistency(replica: bool) -> str:
    return "replica" if replica else "leader"


def _parse_columns(entries: Sequence[str]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise UsageProblem(f"{entry!r} is not NAME=VALUE, for example plan=pro")
        if name in columns:
            raise UsageProblem(f"column {name} is given twice; give it once")
        columns[name] = value
    return columns


def _milliseconds(text: str) -> int:
    milliseconds = parse_duration(text, "--ttl").amount
    if not milliseconds:
        raise UsageProblem(f"--ttl {text!r} is no time")
    return milliseconds
