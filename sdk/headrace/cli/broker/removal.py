"""`headrace broker check-removal`: whether brokers can be removed. For people, and for the guard of a scale-down."""

import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import broker_list, counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.hidden_topics import HIDDEN_ACTION, hidden_text
from headrace.cli.common.rendering import Column, JsonValue, Note, Report, TableSection
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, command

if TYPE_CHECKING:
    from headrace.client.admin.rpc import ClusterDescription, TopicDescription

UNKNOWN_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors of a resolver for a name that does not exist; a failing resolver has other errors."""


@command()
def check_removal(
    session: Session,
    *,
    broker_ids: Annotated[list[int] | None, typer.Argument(metavar="ID...", min=0, help="The brokers' ids.")] = None,
    from_: Annotated[
        int | None, typer.Option("--from", metavar="ID", min=0, help="This broker and all with higher ids.")
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Succeed if no server name resolves (first installation)."),
    ] = False,
) -> None:
    """Check that brokers hold no replica, so that removing them loses nothing. Exit code 1: they do, or may.

    Dead brokers count as well: their volumes may hold the only copy.

    \b
    Examples:
      headrace broker check-removal 3
      headrace broker check-removal --from 3
    """
    if not broker_ids and from_ is None:
        raise UsageProblem("name brokers, or give --from")
    hosts = _hosts(session) if allow_missing else []
    if hosts and not any(map(_is_name_known, hosts)):
        unknown = f"DNS knows no {' and no '.join(hosts)}: nothing is installed there yet"
        session.show(Report({"removable": True, "holding": []}, (Note(unknown),)))
        return
    with session.admin() as admin:
        topics = admin.describe_topics()
        cluster = admin.describe_cluster()
    held: dict[int, list[str]] = defaultdict(list)
    for topic in topics:
        for each in topic.partitions:
            for broker_id in each.replicas:
                if broker_id in (broker_ids or ()) or (from_ is not None and broker_id >= from_):
                    held[broker_id].append(f"{topic.name}-{each.partition}")
    _show_holding(session, held, _unseen(cluster, topics))


def _unseen(cluster: "ClusterDescription", topics: "Sequence[TopicDescription]") -> str:
    """Return why brokers may hold replicas that are not in `topics`, with the next step; empty if they do not."""
    if cluster.undecodable_keys:
        return (
            f"the coordinator cannot decode {counted(cluster.undecodable_keys, 'value')} of the metadata, which may "
            "name replicas: see metadata_value_undecodable in its log, and start the release that wrote them"
        )
    hidden = cluster.count_hidden(topics)
    return f"{hidden_text(hidden)} and may have replicas there: {HIDDEN_ACTION}" if hidden else ""


def _show_holding(session: Session, held: Mapping[int, Sequence[str]], unseen: str) -> None:
    """Show the replicas that brokers hold, `held`; `unseen` states why they may hold more.

    Raises:
        CommandFailed: they hold replicas, or may.
    """
    rows: list[dict[str, JsonValue]] = [
        {"broker_id": broker_id, "replicas": len(names), "partitions": list[JsonValue](names)}
        for broker_id, names in sorted(held.items())
    ]
    is_removable = None if unseen and not held else not held
    document: JsonValue = {"removable": is_removable, "holding": list[JsonValue](rows)}
    part: Note | TableSection = Note("they hold no replica and can be removed")
    if held:
        part = TableSection((Column("ID", "broker_id"), Column("REPLICAS", "replicas")), rows)
    if is_removable is None:
        part = Note("it is unknown whether they hold replicas")
    session.show(Report(document, (part,)))
    if is_removable is None:
        raise CommandFailed(ExitCode.FAILED, unseen)
    if held:
        flags = " ".join(f"--remove-broker {broker_id}" for broker_id in sorted(held))
        replicas = counted(sum(len(names) for names in held.values()), "replica")
        raise CommandFailed(
            ExitCode.FAILED,
            f"{broker_list(sorted(held))} still {'holds' if len(held) == 1 else 'hold'} {replicas}: move them first, "
            f"`headrace partition reassign {flags} --watch`",
        )


def _hosts(session: Session) -> list[str]:
    """Return the servers' hosts; raise ConfigError if one is not host:port, or there is none."""
    from headrace.client.base.config import AdminConfig, build

    config = build(AdminConfig, session.settings())
    return [address.rpartition(":")[0].strip("[]") for address in config.addresses]


def _is_name_known(host: str) -> bool:
    """Return whether DNS has the name. If DNS fails it counts as known: then a server must answer."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in UNKNOWN_NAME
    return True
