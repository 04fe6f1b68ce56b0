"""Shared parts of the group commands: texts of members."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.admin.groups import GroupMember

MEMBERS_NAMED = 5


def member_text(member: "GroupMember") -> str:
    """Return a member as text: `worker-1 (10.0.0.7, client app)`."""
    known = [member.host, f"client {member.client_id}" if member.client_id else ""]
    details = ", ".join(each for each in known if each)
    return f"{member.name} ({details})" if details else member.name


def member_list(members: "Sequence[GroupMember]") -> str:
    """Return the first members by name, and the number of others."""
    named = ", ".join(map(member_text, members[:MEMBERS_NAMED]))
    more = len(members) - MEMBERS_NAMED
    return f"{named} and {more} more" if more > 0 else named
