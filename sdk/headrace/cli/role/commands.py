"""`headrace role`: create, list, delete."""

from typing import Annotated

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import CommandFailed, Session, Yes, command, confirm

app = typer.Typer(help="Manage roles: sets of operations.", no_args_is_help=True, rich_markup_mode=None)

RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.")]


@app.command("create")
@command()
def create(
    session: Session,
    *,
    role: RoleName,
    operations: Annotated[
        list[str],
        typer.Argument(
            metavar="OPERATION...", help="describe, read, write, create, delete, alter, operate, admin: one or several."
        ),
    ],
) -> None:
    """Create a role, or replace the operations of one: its grants change with it.

    \b
    Examples:
      headrace role create importer describe write create
      headrace role create janitor describe delete
    """
    with session.admin() as admin:
        admin.create_role(role, operations)
    document: dict[str, JsonValue] = {"name": role, "operations": list(operations)}
    session.show_change(document, f"role {role} allows {', '.join(operations)}")


@app.command("list")
@command()
def list_roles(session: Session) -> None:
    """List the roles with their operations.

    \b
    Examples:
      headrace role list
      headrace role list --output json
    """
    with session.admin() as admin:
        rows: list[dict[str, JsonValue]] = [
            {"name": each.name, "operations": list(each.operations), "built_in": each.built_in}
            for each in admin.list_roles()
        ]
    columns = (Column("ROLE", "name"), Column("BUILT IN", "built_in"), Column("OPERATIONS", "operations"))
    session.show(Report(rows, (TableSection(columns, rows, empty="no roles"),)))


@app.command("delete")
@command()
def delete(session: Session, *, role: RoleName, yes: Yes = False) -> None:
    """Delete a role that no grant names. Asks first on a terminal.

    \b
    Examples:
      headrace role delete importer
      headrace role delete importer --yes
    """
    confirm(f"Delete role {role}?", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        existed = admin.delete_role(role)
    if not existed:
        raise CommandFailed(ExitCode.NOT_FOUND, f"there is no role {role}. The roles: headrace role list")
    session.show_change({"deleted": role}, f"deleted role {role}")
