"""Rows of grants. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.common.moments import moment_text
from headrace.cli.common.rendering import Column, JsonValue, TableSection

if TYPE_CHECKING:
    from headrace.client.admin.identity import GrantDescription

_COLUMNS = (
    Column("PRINCIPAL", "principal"),
    Column("ROLE", "role"),
    Column("RESOURCE", "resource"),
    Column("EXPIRES", "expires"),
    Column("GRANTED BY", "granted_by", wide=True),
    Column("GRANTED", "granted", wide=True),
)


def grant_row(grant: "GrantDescription") -> dict[str, JsonValue]:
    """Return a grant as fields of a document."""
    return {
        "principal": grant.principal,
        "role": grant.role,
        "resource": grant.resource,
        "expires_ms": grant.expires_ms or None,
        "granted_by": grant.granted_by or None,
        "granted_ms": grant.granted_ms or None,
    }


def grant_table(grants: "Sequence[GrantDescription]") -> TableSection:
    """Return the table of grants."""
    rows = [
        {**grant_row(grant), "expires": moment_text(grant.expires_ms), "granted": moment_text(grant.granted_ms)}
        for grant in grants
    ]
    return TableSection(_COLUMNS, rows, empty="no grants")
