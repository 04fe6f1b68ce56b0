"""The logs of brokers, with gaps where one does not answer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import LogInfo
    from headrace.wire.errors import HeadraceError


def gather_logs(
    admin: "Admin", broker_ids: Iterable[int], topic: str | None = None
) -> "tuple[list[LogInfo], dict[int, HeadraceError]]":
    """The logs on each of the brokers, of all topics or one, and why a broker did not answer."""
    from headrace.wire.errors import HeadraceError

    logs: list[LogInfo] = []
    silent: dict[int, HeadraceError] = {}
    for broker_id in broker_ids:
        try:
            logs += admin.describe_logs(topic, brokers=[broker_id])
        except HeadraceError as error:
            silent[broker_id] = error
    return logs, silent


def leader_logs(logs: "Iterable[LogInfo]") -> "dict[tuple[str, int], LogInfo]":
    """The leader's log of each partition. Where two say that they lead, the one of the later epoch does."""
    found: dict[tuple[str, int], LogInfo] = {}
    for log in logs:
        before = found.get((log.topic, log.partition))
        if log.is_leader and (before is None or before.leader_epoch < log.leader_epoch):
            found[log.topic, log.partition] = log
    return found


def silence_text(broker_id: int, error: "HeadraceError") -> str:
    """That a broker did not answer, where it was asked and why."""
    where = "; ".join(getattr(error, "__notes__", ()))
    return f"broker {broker_id} did not answer{f' ({where})' if where else ''}: {error.message}"
