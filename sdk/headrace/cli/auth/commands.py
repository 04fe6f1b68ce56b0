"""`headrace auth`: login, logout, whoami, check, posture."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.auth.login import login, logout
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Facts, JsonValue, Report, duration_text
from headrace.cli.common.session import CommandFailed, Session, command
from headrace.cli.grant.rows import grant_row, grant_table

if TYPE_CHECKING:
    from headrace.client.admin.identity import CallerDescription

app = typer.Typer(
    help="Log in and out; show the identity of the caller and the posture of the cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("login")(login)
app.command("logout")(logout)


class PostureName(enum.StrEnum):
    """What a cluster does with calls that lack an identity or a right."""

    OPEN = "open"
    OBSERVE = "observe"
    REQUIRED = "required"


@app.command("whoami")
@command()
def whoami(session: Session) -> None:
    """Show who the caller is to the cluster, and its grants.

    \b
    Examples:
      headrace auth whoami
      headrace auth whoami --api-key-file billing.key --output json
    """
    with session.admin() as admin:
        caller = admin.who_am_i()
    document = {**_caller_row(caller), "grants": [grant_row(each) for each in caller.grants]}
    session.show(Report(document, (Facts(_caller_facts(caller)), grant_table(caller.grants))))


@app.command("check")
@command()
def check(session: Session) -> None:
    """Say which credential is configured, and whether the cluster accepts it. The exit code is 8 if it does not.

    \b
    Examples:
      headrace auth check
      headrace auth check --token-file /var/run/secrets/headrace/token
    """
    from headrace.wire.errors import UnauthenticatedError

    credential = session.credential()
    caller, problem, action = None, "", ""
    try:
        with session.admin() as admin:
            caller = admin.who_am_i()
    except UnauthenticatedError as error:
        problem, action = error.message, error.action
    if caller is not None and credential is not None and not caller.user:
        problem, action = "the cluster does not identify the caller by it", "Let an administrator look at its log."
    document: dict[str, JsonValue] = {
        "credential": credential,
        "accepted": None if credential is None and not problem else not problem,
        **_caller_row(caller),
        "problem": problem or None,
        "action": action or None,
    }
    facts = [("Credential", credential or "none"), ("Accepted", document["accepted"])]
    facts += _caller_facts(caller) if caller is not None else []
    facts += [("Problem", problem), ("Next step", action)] if problem else []
    session.show(Report(document, (Facts(facts),)))
    if problem:
        raise CommandFailed(ExitCode.DENIED)


@app.command("posture")
@command()
def posture(
    session: Session,
    *,
    posture: Annotated[
        PostureName | None,
        typer.Argument(metavar="[open|observe|required]", help="The new posture; without it, show the present one."),
    ] = None,
) -> None:
    """Show or change what the cluster does with calls that lack an identity or a right.

    `open` serves them. `observe` serves them and counts what `required` would refuse. `required` refuses them. The
    settings of the servers may demand more than is set here. It takes effect within seconds, without a restart.

    \b
    Examples:
      headrace auth posture
      headrace auth posture observe
    """
    with session.admin() as admin:
        before = admin.who_am_i().posture
        now = before if posture is None else admin.set_posture(posture.value)
    document: dict[str, JsonValue] = {"posture": now, "changed": now != before}
    if posture is None:
        session.show(Report(document, (Facts((("Posture", now),)),)))
        return
    if now != posture.value:
        session.note(f"the settings of the servers demand {now}")
    session.show_change(document, f"the posture is {now}")


def _caller_row(caller: "CallerDescription | None") -> dict[str, JsonValue]:
    return {
        "user": caller.user or None if caller else None,
        "groups": list(caller.groups) if caller else [],
        "identified_by": caller.identified_by or None if caller else None,
        "posture": caller.posture if caller else None,
        "remaining_ms": caller.remaining_ms or None if caller else None,
    }


def _caller_facts(caller: "CallerDescription") -> list[tuple[str, JsonValue]]:
    seconds = caller.remaining_ms // 1000
    return [
        ("User", caller.user or "anonymous"),
        ("Groups", list(caller.groups)),
        ("Identified by", caller.identified_by),
        ("Session ends in", duration_text(seconds * 1000) if caller.remaining_ms else None),
        ("Posture", caller.posture),
    ]
