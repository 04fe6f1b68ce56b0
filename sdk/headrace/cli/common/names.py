"""Arguments for topics and groups, with shell completion of the names in the cluster."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.rendering import OutputFormat
from headrace.cli.common.security_options import given_security
from headrace.cli.common.session import SdkClients, Session, servers_of
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin

COMPLETION_TIMEOUT_MS = 1_000
"""Maximum time that a shell waits for names."""


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin with `incomplete`."""
    return _names(ctx, incomplete, lambda admin: admin.list_topics())


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose ids begin with `incomplete`."""
    return _names(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def _names(ctx: typer.Context, incomplete: str, ask: Callable[["Admin"], Iterable[str]]) -> list[str]:
    """Return names from the cluster of the command line or the environment; empty if it does not respond."""
    session = Session(
        clients=ctx.obj if ctx.obj is not None else SdkClients(),
        bootstrap_servers=servers_of(ctx.params) or os.environ.get("HEADRACE_BOOTSTRAP_SERVERS") or "localhost:7170",
        timeout=COMPLETION_TIMEOUT_MS / 1000,
        output=OutputFormat.TABLE,
        quiet=True,
        verbose=False,
        security=given_security(ctx, ctx.params),
    )
    try:
        with session.admin() as admin:
            return [name for name in ask(admin) if name.startswith(incomplete)]
    except HeadraceError:
        return []


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=topic_names)]
TopicFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Only partitions of this topic; repeatable.", autocompletion=topic_names
    ),
]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=group_names)]
