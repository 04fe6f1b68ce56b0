"""`headrace group describe`: members, owners of partitions with their epochs, and lags."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.names import Group, TopicFilter
from headrace.cli.common.rendering import Column, Facts, JsonValue, Note, Report, Section, TableSection, duration_text
from headrace.cli.common.session import Session, command
from headrace.cli.group.lag import lag_notes, time_text, total_lag
from headrace.cli.group.registries import registry_rows, registry_table
from headrace.wire.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin.groups import GroupDescription, GroupMember, PartitionLag


@command()
def describe(
    session: Session,
    *,
    group: Group,
    topics: TopicFilter = None,
    no_time: Annotated[
        bool,
        typer.Option("--no-time", help="Omit the age of the lag, which reads one batch of each partition with a lag."),
    ] = False,
) -> None:
    """Show a group's members, the owner and epoch of each partition, and its lag.

    LAG is the number of records from the committed offset to the high watermark. BEHIND is the age of the first of
    them, by this host's clock and the record's timestamp. EPOCH is the fencing token of the partition's owner. A
    partition without a committed offset has no lag: its owner starts at auto_offset_reset.

    --verbose adds the etcd keys of the group: the paper's registries of brokers, consumers, ownership and offsets.
    Readers that report their positions can be described as well.

    \b
    Examples:
      headrace group describe billing
      headrace group describe billing --topic clicks --output wide
      headrace group describe billing --verbose
      headrace group describe billing --output json --no-time
    """
    with session.admin() as admin:
        found = admin.describe_group(group)
        lags = admin.group_lag(found, times=not no_time)
        registries = registry_rows(found, admin.dump("brokers/")) if session.verbose else None
    lags = [each for each in lags if not topics or each.topic in topics]
    document = _document(found, lags)
    if registries is not None:
        document["registries"] = registries
    sections = _sections(found, document, lags)
    if registries is not None:
        sections.append(registry_table(registries))
    session.show(Report(document, sections))


def _document(group: "GroupDescription", lags: "Sequence[PartitionLag]") -> dict[str, JsonValue]:
    by_partition = {TopicPartition(each.topic, each.partition): each for each in lags}
    return {
        "group_id": group.listing.group_id,
        "state": group.listing.state,
        "assignor": group.listing.assignor or None,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "empty_since_ms": group.listing.empty_since_ms or None,
        **total_lag(lags).row(),
        "members": [_member_row(each, by_partition) for each in group.members],
        "partitions": _partition_rows(group, by_partition),
        "unowned": [_where(each) for each in group.unowned if each in by_partition],
    }


def _where(where: TopicPartition) -> dict[str, JsonValue]:
    return {"topic": where.topic, "partition": where.partition}


def _member_row(member: "GroupMember", lags: "dict[TopicPartition, PartitionLag]") -> dict[str, JsonValue]:
    return {
        "member_id": member.member_id.hex(),
        "name": member.name,
        "instance_id": member.instance_id or None,
        "user": member.user or None,
        "client_id": member.client_id or None,
        "host": member.host or None,
        "rack": member.rack or None,
        "member_epoch": member.member_epoch,
        "topics": list(member.topics),
        "topic_pattern": member.topic_pattern or None,
        "owned": [{**_where(where), "assignment_epoch": epoch} for where, epoch in sorted(member.owned.items())],
        "target": [_where(where) for where in member.target],
        **total_lag(lags[where] for where in member.owned if where in lags).row(),
        "joined_ms": member.joined_ms,
        "session_timeout_ms": member.session_timeout_ms,
        "live": member.live,
        "revoking_ms": member.revoking_ms or None,
    }


def _partition_rows(
    group: "GroupDescription", lags: "dict[TopicPartition, PartitionLag]"
) -> list[dict[str, JsonValue]]:
    owners = group.owners
    next_owners = {where: member for member in group.members for where in member.target}
    rows: list[dict[str, JsonValue]] = []
    for where, lag in lags.items():
        owner, wanted, stored = owners.get(where), next_owners.get(where), group.offsets.get(where)
        rows.append(
            {
                **_where(where),
                "committed_offset": lag.committed_offset if stored else None,
                "log_start_offset": lag.log_start_offset if lag.log_start_offset >= 0 else None,
                "end_offset": lag.end_offset if lag.end_offset >= 0 else None,
                "lag_records": lag.records,
                "lag_ms": lag.behind_ms,
                "missed_records": lag.missed_records,
                "owner": owner.member_id.hex() if owner else None,
                "owner_name": owner.name if owner else None,
                "assignment_epoch": owner.owned[where] if owner else None,
                "next_owner": wanted.member_id.hex() if wanted and wanted is not owner else None,
                "next_owner_name": wanted.name if wanted and wanted is not owner else None,
                "committed_ms": stored.committed_ms if stored else None,
                "leader_epoch": stored.leader_epoch if stored and stored.leader_epoch >= 0 else None,
                "metadata": stored.metadata or None if stored else None,
                "problem": lag.problem or None,
            }
        )
    return rows


def _sections(
    group: "GroupDescription", document: dict[str, JsonValue], lags: "Sequence[PartitionLag]"
) -> list[Section]:
    total = total_lag(lags)
    facts: list[tuple[str, JsonValue]] = [
        ("Group", group.listing.group_id),
        ("State", group.listing.state),
        ("Assignor", group.listing.assignor),
        ("Members", len(group.members)),
        ("Group epoch", group.group_epoch),
        ("Lag", _lag_text(total.records, total.behind_ms)),
    ]
    partitions, members = document["partitions"], document["members"]
    assert isinstance(partitions, list)
    assert isinstance(members, list)
    sections: list[Section] = [Facts(facts), _partition_table(partitions), _member_table(group, members)]
    sections += [Note(each) for each in _notes(group, lags)]
    return sections


def _lag_text(records: int | None, behind_ms: int | None) -> str | None:
    if records is None:
        return None
    text = counted(records, "record")
    return f"{text}, {time_text(behind_ms)} behind" if behind_ms else text


def _partition_table(rows: list[dict[str, JsonValue]]) -> TableSection:
    shown = [{**row, "behind": _time_cell(row["lag_ms"])} for row in rows]
    moving = any(row["next_owner"] for row in rows)
    columns = [
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition"),
        Column("COMMITTED", "committed_offset"),
        Column("LOG START", "log_start_offset", wide=True),
        Column("END", "end_offset"),
        Column("LAG", "lag_records"),
        Column("BEHIND", "behind"),
        Column("OWNER", "owner_name"),
        Column("EPOCH", "assignment_epoch"),
        Column("NEXT OWNER", "next_owner_name", wide=not moving),
        Column("COMMITTED MS", "committed_ms", wide=True),
        Column("LEADER EPOCH", "leader_epoch", wide=True),
        Column("METADATA", "metadata", wide=True),
    ]
    return TableSection(columns, shown, empty="no partitions")


def _member_table(group: "GroupDescription", rows: list[dict[str, JsonValue]]) -> TableSection:
    shown = [
        {
            **row,
            "partitions": len(member.owned),
            "behind": _time_cell(row["lag_ms"]),
            "seen": f"{'within' if member.live else 'not for'} {duration_text(member.session_timeout_ms)}",
            "revoking": time_text(member.revoking_ms) if member.revoking_ms else None,
        }
        for member, row in zip(group.members, rows, strict=True)
    ]
    columns = (
        Column("MEMBER", "name"),
        Column("HOST", "host"),
        Column("USER", "user", wide=not any(member.user for member in group.members)),
        Column("CLIENT", "client_id"),
        Column("RACK", "rack", wide=not any(member.rack for member in group.members)),
        Column("EPOCH", "member_epoch"),
        Column("PARTITIONS", "partitions"),
        Column("LAG", "lag_records"),
        Column("BEHIND", "behind"),
        Column("HEARTBEAT", "seen"),
        Column("GIVING UP FOR", "revoking", wide=not any(member.revoking_ms for member in group.members)),
        Column("TOPICS", "topics", wide=True),
        Column("PATTERN", "topic_pattern", wide=True),
        Column("MEMBER ID", "member_id", wide=True),
        Column("JOINED MS", "joined_ms", wide=True),
    )
    return TableSection(columns, shown, empty="no members")


def _time_cell(value: JsonValue) -> str | None:
    return time_text(value) if isinstance(value, int) else None


def _notes(group: "GroupDescription", lags: "Sequence[PartitionLag]") -> list[str]:
    shown = {TopicPartition(each.topic, each.partition) for each in lags}
    notes = []
    if unowned := [where for where in group.unowned if where in shown]:
        named = ", ".join(f"{where.topic}:{where.partition}" for where in unowned)
        notes.append(f"{counted(len(unowned), 'partition')} without an owner now: {named}")
    if waiting := [each for each in group.members if each.revoking_ms]:
        named = ", ".join(f"{each.name} for {time_text(each.revoking_ms)}" for each in waiting)
        notes.append(f"must release partitions that it still owns: {named}")
    if unset := sum(each.committed_offset < 0 and not each.problem for each in lags):
        notes.append(
            f"{counted(unset, 'partition')} without a committed offset: auto_offset_reset determines the start"
        )
    return [*notes, *lag_notes(lags)]
