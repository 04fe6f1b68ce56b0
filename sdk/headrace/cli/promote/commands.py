"""`headrace promote`: topics of a directory in a cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.arguments import counted, parse_rate
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection, bytes_text
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, command

_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("PARTITIONS", "partitions"),
    Column("RECORDS", "records"),
    Column("COPIED", "copied"),
    Column("GROUPS", "groups"),
    Column("STATE", "state"),
)


@command()
def promote(
    session: Session,
    *,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", help="Directory of headrace.open."),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="HOST:PORT,...", help="Bootstrap servers; the same as --bootstrap-servers."),
    ] = "",
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--as", metavar="TOPIC=NAME", help="Another name of a topic in the cluster."),
    ] = None,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=0, help="Replicas; 0 means the cluster's default.")
    ] = 0,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Limit of the copy, such as 50MB; none by default.")
    ] = None,
) -> None:
    """Copy the topics of a directory to a cluster, with their offsets, checksums, settings and groups' offsets.

    A topic is read only in the cluster until all of its records are there. The same command continues one that was
    interrupted. The directory stays as it is.

    \b
    Examples:
      headrace promote events --to broker-1:7181
      headrace promote events --topic clicks --as clicks=clicks-2026 --rate 50MB
    """
    from headrace.client.mirror.promote import promote as copy

    if to:
        session = replace(session, bootstrap_servers=to)
    renamed = dict(each.partition("=")[::2] for each in names or ())
    if not all(renamed.values()):
        raise UsageProblem("--as is not TOPIC=NAME")
    promoted = copy(
        directory,
        topics or None,
        names=renamed,
        replication_factor=replication_factor,
        bytes_per_second=parse_rate(rate, "--rate") if rate else 0,
        **session.settings(),
    )
    rows: list[dict[str, JsonValue]] = [
        {
            "topic": each.name,
            "partitions": len(each.end_offsets),
            "records": sum(each.end_offsets.values()),
            "size_bytes": each.size_bytes,
            "copied": bytes_text(each.size_bytes),
            "groups": len(each.groups),
            "state": "promoted before" if each.was_promoted else "promoted",
        }
        for each in promoted
    ]
    session.show(Report({"directory": str(directory), "topics": list(rows)}, (TableSection(_COLUMNS, rows),)))
    refused = {group: error for each in promoted for group, error in each.refused_groups.items()}
    if refused:
        told = "; ".join(f"{group}: {error}" for group, error in sorted(refused.items()))
        raise CommandFailed(
            ExitCode.FAILED,
            f"offsets not stored for {counted(len(refused), 'group')}, promote again to store them: {told}",
        )
