"""Logs of brokers, without those of brokers that do not respond."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.replication import LogInfo
    from headrace.wire.errors import HeadraceError


def gather_logs(
    admin: "Admin", broker_ids: Iterable[int], topic: str | None = None
) -> "tuple[list[LogInfo], dict[int, HeadraceError]]":
    """Return the logs of the brokers, of all topics or one, and the errors of brokers that did not respond."""
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
    """Return the leader's log of each partition; of two that report leadership, that of the later epoch."""
    found: dict[tuple[str, int], LogInfo] = {}
    for log in logs:
        before = found.get((log.topic, log.partition))
        if log.is_leader and (before is None or before.leader_epoch < log.leader_epoch):
            found[log.topic, log.partition] = log
    return found


def silence_text(broker_id: int, error: "HeadraceError") -> str:
    """Return a sentence about a broker that did not respond, with its address and the error."""
    where = "; ".join(getattr(error, "__notes__", ()))
    return f"broker {broker_id} did not respond{f' ({where})' if where else ''}: {error.message}"
