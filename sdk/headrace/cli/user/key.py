"""`headrace user key`: create, delete."""

from typing import Annotated

import typer

from headrace.cli.common.moments import lifetime_ms, moment_text
from headrace.cli.common.rendering import JsonValue, Note, Report
from headrace.cli.common.session import Session, Yes, command, confirm

app = typer.Typer(help="Manage the API keys of users.", no_args_is_help=True, rich_markup_mode=None)


@app.command("create")
@command()
def create(
    session: Session,
    *,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user's name.")],
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="Free text.")] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Lifetime, such as 90d or 12h. Default: no end."),
    ] = None,
) -> None:
    """Create an API key and print it. It is shown only once: the cluster keeps a hash of it.

    A user has at most two keys. To replace one without an interruption, create the second, give it to the program, and
    delete the first.

    \b
    Examples:
      headrace user key create billing > billing.key
      headrace user key create billing --expires 90d --description "invoices, second key"
    """
    lifetime = lifetime_ms(expires)
    with session.admin() as admin:
        made = admin.create_api_key(user, description=description, lifetime_ms=lifetime)
    document: dict[str, JsonValue] = {
        "user": user,
        "key_id": made.key_id,
        "api_key": made.secret,
        "expires_ms": made.expires_ms or None,
    }
    until = f", until {moment_text(made.expires_ms)}" if made.expires_ms else ""
    session.note(f"API key {made.key_id} of user {user}{until}; it cannot be shown again")
    session.show(Report(document, (Note(made.secret),)))


@app.command("delete")
@command()
def delete(
    session: Session,
    *,
    key_id: Annotated[str, typer.Argument(metavar="KEY-ID", help="The 12 characters of the key after hrk_.")],
    yes: Yes = False,
) -> None:
    """Delete an API key: its sessions end within seconds. Asks first on a terminal.

    \b
    Examples:
      headrace user key delete f3Kq0Zr8LmT1
      headrace user key delete f3Kq0Zr8LmT1 --yes
    """
    confirm(f"Delete API key {key_id}?", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        admin.delete_api_key(key_id)
    session.show_change({"deleted": key_id}, f"deleted API key {key_id}")
