"""`headrace user`: create, list, describe, disable, enable, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.moments import moment_text
from headrace.cli.common.rendering import Column, Facts, JsonValue, Report, TableSection
from headrace.cli.common.session import Session, Yes, command, confirm
from headrace.cli.grant.rows import grant_row, grant_table
from headrace.cli.user import key

if TYPE_CHECKING:
    from headrace.client.admin.identity import UserDescription

app = typer.Typer(help="Manage users and their API keys.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(key.app, name="key")

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


@app.command("create")
@command()
def create(
    session: Session,
    *,
    user: UserName,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", help="A group whose grants the user has, too; repeatable."),
    ] = None,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="Free text.")] = "",
    certificate_name: Annotated[
        list[str] | None,
        typer.Option(
            "--certificate-name",
            metavar="NAME",
            help="Common name, DNS name or SPIFFE id of a client certificate that identifies the user; repeatable.",
        ),
    ] = None,
) -> None:
    """Create a user. It has no rights until it is granted some.

    \b
    Examples:
      headrace user create billing --description "invoices, team blue"
      headrace user create billing --group finance --certificate-name spiffe://example.org/billing
    """
    with session.admin() as admin:
        made = admin.create_user(
            user, groups=group or (), description=description, certificate_names=certificate_name or ()
        )
    session.show_change(_row(made), f"created user {made.name}")


@app.command("list")
@command()
def list_users(session: Session) -> None:
    """List the users. Those that an issuer names are not among them.

    \b
    Examples:
      headrace user list
      headrace user list --output json
    """
    with session.admin() as admin:
        users = admin.list_users()
    columns = (
        Column("USER", "name"),
        Column("DISABLED", "disabled"),
        Column("GROUPS", "groups"),
        Column("API KEYS", "keys"),
        Column("CERTIFICATES", "certificate_names", wide=True),
        Column("CREATED", "created", wide=True),
        Column("DESCRIPTION", "description"),
    )
    shown = [{**_row(each), "keys": len(each.api_keys), "created": moment_text(each.created_ms)} for each in users]
    session.show(Report([_row(each) for each in users], (TableSection(columns, shown, empty="no users"),)))


@app.command("describe")
@command()
def describe(session: Session, *, user: UserName) -> None:
    """Show a user, its API keys (without their secrets) and its grants.

    \b
    Examples:
      headrace user describe billing
      headrace user describe billing --output json
    """
    with session.admin() as admin:
        found = admin.describe_user(user)
        principals = (user, *(f"group:{name}" for name in found.groups))
        grants = [grant for principal in principals for grant in admin.list_grants(principal)]
    facts = (
        ("User", found.name),
        ("Disabled", found.disabled),
        ("Groups", list(found.groups)),
        ("Description", found.description),
        ("Certificate names", list(found.certificate_names)),
        ("Created", moment_text(found.created_ms)),
    )
    keys: list[dict[str, JsonValue]] = [
        {
            "key_id": each.key_id,
            "created": moment_text(each.created_ms),
            "expires": moment_text(each.expires_ms),
            "description": each.description,
        }
        for each in found.api_keys
    ]
    columns = (
        Column("KEY ID", "key_id"),
        Column("CREATED", "created"),
        Column("EXPIRES", "expires"),
        Column("DESCRIPTION", "description"),
    )
    document = {**_row(found), "grants": [grant_row(each) for each in grants]}
    sections = (Facts(facts), TableSection(columns, keys, empty="no API keys"), grant_table(grants))
    session.show(Report(document, sections))


@app.command("disable")
@command()
def disable(session: Session, *, user: UserName) -> None:
    """Disable a user: its sessions end within seconds, and none begins. Its keys and grants stay.

    \b
    Examples:
      headrace user disable billing
      headrace user disable billing --output json
    """
    _set_disabled(session, user, disabled=True)


@app.command("enable")
@command()
def enable(session: Session, *, user: UserName) -> None:
    """Enable a user that was disabled.

    \b
    Examples:
      headrace user enable billing
      headrace user enable billing --output json
    """
    _set_disabled(session, user, disabled=False)


@app.command("delete")
@command()
def delete(session: Session, *, user: UserName, yes: Yes = False) -> None:
    """Delete a user, its API keys and its grants; its sessions end. Asks first on a terminal.

    \b
    Examples:
      headrace user delete billing
      headrace user delete billing --yes
    """
    confirm(f"Delete user {user}, its API keys and its grants?", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        admin.delete_user(user)
    session.show_change({"deleted": user}, f"deleted user {user}")


def _set_disabled(session: Session, user: str, *, disabled: bool) -> None:
    with session.admin() as admin:
        found = admin.alter_user(user, disabled=disabled)
    session.show_change(_row(found), f"{'disabled' if disabled else 'enabled'} user {user}")


def _row(user: "UserDescription") -> dict[str, JsonValue]:
    return {
        "name": user.name,
        "disabled": user.disabled,
        "groups": list(user.groups),
        "description": user.description or None,
        "api_keys": [
            {
                "key_id": each.key_id,
                "description": each.description or None,
                "created_ms": each.created_ms,
                "expires_ms": each.expires_ms or None,
            }
            for each in user.api_keys
        ],
        "certificate_names": list(user.certificate_names),
        "created_ms": user.created_ms or None,
    }
