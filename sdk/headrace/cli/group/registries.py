"""The four registries of the paper (section 3.2) as etcd keys: brokers, consumers, ownership, offsets.

Kafka stored them as nodes of ZooKeeper; here they are keys of etcd, whose values are in `docs/reference/etcd-keys.md`.
Pure: the keys are built from ids, as in the coordinators.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.cli.common.rendering import Column, JsonValue, TableSection, duration_text
from headrace.cli.group.options import member_text

if TYPE_CHECKING:
    from headrace.client.admin.groups import GroupDescription
    from headrace.client.admin.rpc import MetadataEntry

COLUMNS = (Column("REGISTRY", "registry"), Column("KEY", "key"), Column("HOLDS", "holds"))


def registry_rows(group: "GroupDescription", brokers: "Iterable[MetadataEntry]") -> list[dict[str, JsonValue]]:
    """Return every key of a group.

    Args:
        group: description by a coordinator.
        brokers: keys below `brokers/`.
    """
    rows: list[dict[str, JsonValue]] = []
    prefix = ""
    for entry in brokers:
        _, root, cluster, generation, _, broker_id = entry.key.split("/")
        prefix = f"/{root}/{cluster}/groups/{generation}/"
        rows.append(_row("brokers", entry.key, f"broker {broker_id} is alive"))
    if not prefix:
        return rows  # Without a broker key the name of the cluster is unknown.
    name = group.listing.group_id
    here = f"{prefix}group/{name}/"
    for member in group.members:
        if member.live:
            held = f"{member_text(member)} is alive, for {duration_text(member.session_timeout_ms)} at a time"
            rows.append(_row("consumers", f"{here}members/{member.member_id.hex()}", held))
    rows.append(_row("ownership", f"{here}state", f"members, target and owners at group epoch {group.group_epoch}"))
    for member in group.members:
        owned = ",".join(f"{where.topic}:{where.partition}" for where in sorted(member.owned)) or "nothing"
        rows.append(_row("ownership", f"{here}assignments/{member.member_id.hex()}", f"{member.name} owns {owned}"))
    rows += _offset_rows(group, here, group.topic_ids)
    return rows


def _offset_rows(
    group: "GroupDescription", prefix: str, topic_ids: Mapping[str, bytes]
) -> Iterable[dict[str, JsonValue]]:
    for where, each in group.offsets.items():
        key = f"{prefix}offsets/{topic_ids[where.topic].hex()}/{where.partition}"
        yield _row("offsets", key, f"{where.topic}:{where.partition} continues at {each.offset}")


def _row(registry: str, key: str, holds: str) -> dict[str, JsonValue]:
    return {"registry": registry, "key": key, "holds": holds}


def registry_table(rows: list[dict[str, JsonValue]]) -> TableSection:
    """Return the keys as a table."""
    return TableSection(COLUMNS, rows, empty="no keys")
