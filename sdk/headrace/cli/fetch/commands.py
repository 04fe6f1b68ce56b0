"""`headrace fetch`: a topic of a cluster as a directory."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.moments import offset_or_time
from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import Session, command

_COLUMNS = (
    Column("PARTITION", "partition"),
    Column("START", "start_offset"),
    Column("END", "end_offset"),
    Column("COPIED", "records"),
    Column("BYTES", "size_bytes"),
)
Target = Annotated[
    Path,
    typer.Option("--dir", metavar="DIRECTORY", help="Directory for the copy; made if there is none.", file_okay=False),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="OFFSET|TIME",
        help="End of the copy: an offset, or a time such as 2026-11-21T10:00Z; everything visible now by default.",
    ),
]


@command()
def fetch(session: Session, *, topic: Topic, directory: Target, until: Until = None) -> None:
    """Copy a topic of a cluster to a directory, byte for byte: offsets, epochs and checksums stay.

    The same command continues a copy. Read it with `--dir`, or in Python with headrace.open.

    \b
    Examples:
      headrace fetch clicks --dir events
      headrace fetch clicks --dir events --until 2026-11-21T10:00Z
    """
    from headrace.client.opened.fetched import fetch as copy

    found = copy(topic, directory, until=offset_or_time(until, "--until"), **session.settings())
    rows: list[dict[str, JsonValue]] = [each._asdict() for each in found]
    session.show(
        Report({"topic": topic, "directory": str(directory), "partitions": rows}, (TableSection(_COLUMNS, rows),))
    )
