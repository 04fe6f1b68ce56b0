"""`headrace grant`, `revoke`, `grants`, `can`."""

from typing import Annotated

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.moments import after, lifetime_ms, moment_text
from headrace.cli.common.rendering import JsonValue, Note, Report
from headrace.cli.common.session import CommandFailed, Session, command
from headrace.cli.grant.rows import grant_row, grant_table

Who = Annotated[str, typer.Argument(metavar="WHO", help="A user, or group:NAME.")]
RoleName = Annotated[
    str, typer.Argument(metavar="ROLE", help="A role of `headrace role list`, or an operation such as read.")
]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="cluster, topic:NAME, group:NAME, schema:NAME, or a prefix such as 'topic:team.*' and 'team.*'.",
    ),
]
ExpiresIn = Annotated[
    str | None,
    typer.Option("--expires", metavar="DURATION", help="End after this time, such as 12h or 90d. Default: never."),
]
CALLER = "-"
"""WHO of `can` for the caller itself."""


@command()
def grant(session: Session, *, who: Who, role: RoleName, resource: Resource, expires: ExpiresIn = None) -> None:
    """Grant a role on a resource to a user or a group.

    Rights add up: there are no exceptions, so a right ends only with the last grant of it. A grant on the cluster
    covers all its topics and groups. Granting the same again changes when it expires.

    \b
    Examples:
      headrace grant ada reader 'topic:clicks.*'
      headrace grant group:on-call operator cluster --expires 12h
    """
    expires_ms = after(lifetime_ms(expires))
    with session.admin() as admin:
        granted = admin.grant(who, role, resource, expires_ms=expires_ms)
    until = f" until {moment_text(granted.expires_ms)}" if granted.expires_ms else ""
    session.show_change(grant_row(granted), f"{who} has {role} on {resource}{until}")


@command()
def revoke(session: Session, *, who: Who, role: RoleName, resource: Resource) -> None:
    """Take back a grant. It ends within seconds, also for connections that are open.

    \b
    Examples:
      headrace revoke ada reader 'topic:clicks.*'
      headrace revoke group:on-call operator cluster
    """
    with session.admin() as admin:
        existed = admin.revoke(who, role, resource)
    if not existed:
        raise CommandFailed(
            ExitCode.NOT_FOUND,
            f"{who} has no such grant: {role} on {resource}. Its grants: headrace grants --who {who}",
        )
    document: dict[str, JsonValue] = {"principal": who, "role": role, "resource": resource, "revoked": True}
    session.show_change(document, f"{who} has no grant of {role} on {resource}")


@command()
def list_grants(
    session: Session,
    *,
    who: Annotated[str, typer.Option("--who", metavar="WHO", help="Only grants to this user or group:NAME.")] = "",
    resource: Annotated[
        str, typer.Option("--resource", metavar="RESOURCE", help="Only grants that cover this resource.")
    ] = "",
) -> None:
    """List grants.

    \b
    Examples:
      headrace grants --who group:on-call
      headrace grants --resource topic:clicks.eu
    """
    with session.admin() as admin:
        grants = admin.list_grants(who, resource)
    session.show(Report([grant_row(each) for each in grants], (grant_table(grants),)))


@command()
def can(
    session: Session,
    *,
    who: Annotated[str, typer.Argument(metavar="WHO", help="A user; - is the caller.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="An operation, such as read or write.")],
    resource: Resource,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", help="A group that an issuer names for the user; repeatable."),
    ] = None,
) -> None:
    """Say whether a user may do something, and why. The exit code is 0 for yes and 8 for no.

    \b
    Examples:
      headrace can ada write topic:clicks.eu
      headrace can - read topic:clicks.eu --output json
    """
    user = "" if who == CALLER else who
    with session.admin() as admin:
        decision = admin.check_access(operation, resource, user=user, groups=group or ())
    document: dict[str, JsonValue] = {
        "user": user or None,
        "operation": operation,
        "resource": resource,
        "allowed": decision.allowed,
        "reason": decision.reason,
        "grant": None if decision.grant is None else grant_row(decision.grant),
    }
    session.show(Report(document, (Note(f"{'yes' if decision.allowed else 'no'}: {decision.reason}"),)))
    if not decision.allowed:
        raise CommandFailed(ExitCode.DENIED)
