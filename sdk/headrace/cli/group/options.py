"""What the commands about groups share: the group's name, completed by the shell, and how a member is named."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.session import CLIENT_ID, SdkClients
from headrace.wire.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin.groups import GroupMember

COMPLETION_TIMEOUT_MS = 1_000
"""So long a shell that asks for names is kept waiting, at most."""
MEMBERS_NAMED = 5


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups whose names begin so, for a shell; nothing where no cluster answers."""
    clients = ctx.obj if ctx.obj is not None else SdkClients()
    servers = ctx.params.get("bootstrap_servers") or os.environ.get("HEADRACE_BOOTSTRAP_SERVERS") or "localhost:7170"
    settings = {
        "bootstrap_servers": servers,
        "client_id": CLIENT_ID,
        "request_timeout_ms": COMPLETION_TIMEOUT_MS,
    }
    try:
        with clients.admin(**settings) as admin:
            found = admin.list_groups()
    except HeadraceError:
        return []
    return [each.group_id for each in found if each.group_id.startswith(incomplete)]


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=group_names)]


def member_text(member: "GroupMember") -> str:
    """A member for a person: `worker-1 (10.0.0.7, client app)`."""
    known = [member.host, f"client {member.client_id}" if member.client_id else ""]
    details = ", ".join(each for each in known if each)
    return f"{member.name} ({details})" if details else member.name


def member_list(members: "Sequence[GroupMember]") -> str:
    """The first members by name, and how many more there are."""
    named = ", ".join(map(member_text, members[:MEMBERS_NAMED]))
    more = len(members) - MEMBERS_NAMED
    return f"{named} and {more} more" if more > 0 else named
