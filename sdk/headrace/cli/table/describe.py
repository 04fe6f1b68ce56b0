"""`headrace table describe`: partitions, numbers of rows and columns, memory, settings."""

from typing import TYPE_CHECKING

from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Column, Facts, JsonValue, Report, TableSection, bytes_text
from headrace.cli.common.session import Session, command
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin.rpc import PartitionDescription
    from headrace.client.table.rows import TablePartition
    from headrace.client.table.table import Table

_SETTINGS = ("table", "table_ttl_ms", "cleanup_policy", "delete_retention_ms", "min_compaction_lag_ms", "durability")
"""Settings of topics that matter for tables; --output json has all."""


@command()
def describe(session: Session, *, table: Topic) -> None:
    """Show a table's partitions with their leaders, rows, columns and memory, and its settings.

    BYTES is the approximate memory of the keys at the leader; each replica needs as much. AS OF is the offset below
    which the table has every write; LOG END is more than that while writes are not committed.

    \b
    Examples:
      headrace table describe users
      headrace table describe users --output json
    """
    with session.admin() as admin:
        found = admin.describe_topic(table)
        configs = admin.describe_config(table)
    with session.table(table) as rows:
        partitions = [_row(session, rows, each) for each in found.partitions]
    document: JsonValue = {
        "name": table,
        "topic_id": found.topic_id.hex(),
        "replication_factor": found.replication_factor,
        **{name: _sum(partitions, name) for name in ("rows", "columns", "state_bytes")},
        "partitions": partitions,
        "configs": {
            name: {"value": each.value, "is_default": each.is_default, "default": each.default}
            for name, each in configs.items()
        },
    }
    size = _sum(partitions, "state_bytes")
    facts = Facts(
        (
            ("Table", table),
            ("Topic id", found.topic_id.hex()),
            ("Partitions", len(partitions)),
            ("Replicas", found.replication_factor),
            ("Rows", _sum(partitions, "rows")),
            ("Columns", _sum(partitions, "columns")),
            ("Memory", None if size is None else bytes_text(size)),
        )
    )
    columns = (
        Column("PARTITION", "partition"),
        Column("LEADER", "leader"),
        Column("IN SYNC", "in_sync_replicas"),
        Column("ROWS", "rows"),
        Column("COLUMNS", "columns"),
        Column("BYTES", "state_bytes"),
        Column("AS OF", "as_of_offset"),
        Column("LOG END", "log_end_offset"),
    )
    settings: list[dict[str, JsonValue]] = [
        {"name": name, "value": configs[name].value, "source": "default" if configs[name].is_default else "topic"}
        for name in _SETTINGS
        if name in configs
    ]
    shown = (Column("SETTING", "name"), Column("VALUE", "value"), Column("SOURCE", "source"))
    session.show(Report(document, (facts, TableSection(columns, partitions), TableSection(shown, settings))))


def _row(session: Session, rows: "Table", partition: "PartitionDescription") -> dict[str, JsonValue]:
    """Return a partition as a row; numbers are missing if its leader does not tell them."""
    known: TablePartition | None = None
    try:
        [known] = rows.describe_partitions([partition.partition])
    except HeadraceError as error:
        if not error.retriable:
            raise
        session.note(f"numbers of partition {partition.partition} are missing: {error.message}")
    return {
        "partition": partition.partition,
        "leader": partition.leader_id if partition.leader_id >= 0 else None,
        "in_sync_replicas": list(partition.in_sync_replicas),
        "rows": known.rows if known else None,
        "columns": known.columns if known else None,
        "state_bytes": known.state_bytes if known else None,
        "as_of_offset": known.as_of_offset if known else None,
        "log_end_offset": known.log_end_offset if known else None,
    }


def _sum(partitions: list[dict[str, JsonValue]], name: str) -> int | None:
    """Return the sum over the partitions; `None` if one of them is not known."""
    known = [value for row in partitions if isinstance(value := row[name], int)]
    return sum(known) if len(known) == len(partitions) else None
