"""`headrace quota`: set, list, describe, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import parse_rate
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.moments import moment_text
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection, bytes_text
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, Yes, command, confirm

if TYPE_CHECKING:
    from headrace.client.admin.identity import QuotaDescription

app = typer.Typer(
    help="Manage quotas: the rates at which each broker and coordinator serves one user.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

QuotaUser = Annotated[
    str,
    typer.Argument(
        metavar="USER",
        help="A user; '*' is every user without a quota of its own, and callers without an identity, by address.",
    ),
]
BOUNDS = {
    "produce_bytes_per_second": "produce",
    "fetch_bytes_per_second": "fetch",
    "requests_per_second": "requests",
    "connections": "connections",
    "changes_per_minute": "changes",
}
"""Columns of the bounds of a quota."""
DEFAULT = "default"


@app.command("set")
@command()
def set_quota(
    session: Session,
    *,
    user: QuotaUser,
    produce_bytes: Annotated[
        str | None,
        typer.Option("--produce-bytes", metavar="RATE", help="Produced bytes per second and broker, such as 10MB."),
    ] = None,
    fetch_bytes: Annotated[
        str | None,
        typer.Option("--fetch-bytes", metavar="RATE", help="Fetched bytes per second and broker, such as 50MB."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", min=0, help="Requests per second of any kind and server."),
    ] = None,
    connections: Annotated[
        int | None,
        typer.Option("--connections", metavar="N", min=0, help="Connections of the native protocol to a broker."),
    ] = None,
    changes: Annotated[
        int | None,
        typer.Option(
            "--changes",
            metavar="N",
            min=0,
            help="Administrative requests, and what they create, move or delete, per minute and server.",
        ),
    ] = None,
) -> None:
    """Bound what each broker, and each coordinator, serves a user. Bounds that are not given stay; 0 means no bound.

    Answers beyond a rate are sent later, which slows down any client; beyond connections, clients use gRPC. It takes
    effect within seconds, without a restart.

    \b
    Examples:
      headrace quota set billing --produce-bytes 10MB --fetch-bytes 50MB --requests 1000
      headrace quota set '*' --connections 100
    """
    given = {
        "produce_bytes_per_second": _rate("--produce-bytes", produce_bytes),
        "fetch_bytes_per_second": _rate("--fetch-bytes", fetch_bytes),
        "requests_per_second": requests,
        "connections": connections,
        "changes_per_minute": changes,
    }
    changed = {name: bound for name, bound in given.items() if bound is not None}
    if not changed:
        raise UsageProblem("give --produce-bytes, --fetch-bytes, --requests, --connections or --changes")
    with session.admin() as admin:
        before = next((quota for quota in admin.list_quotas() if quota.user == user and not quota.is_default), None)
        bounds = {name: getattr(before, name, None) for name in BOUNDS} | changed
        admin.put_quota(user, **bounds)
    said = ", ".join(f"{BOUNDS[name]} {_text(name, bound)}" for name, bound in bounds.items() if bound is not None)
    session.show_change({"user": user, **bounds}, f"quota of {user}: {said}")


@app.command("list")
@command()
def list_quotas(session: Session) -> None:
    """List the quotas, and the default, which applies to all users where neither their own quota nor that of '*' does.

    \b
    Examples:
      headrace quota list
      headrace quota list --output json
    """
    with session.admin() as admin:
        quotas = admin.list_quotas()
    columns = (
        Column("USER", "user"),
        *(Column(column.upper(), column) for column in BOUNDS.values()),
        Column("SET BY", "set_by", wide=True),
        Column("SET", "set", wide=True),
    )
    rows: list[dict[str, JsonValue]] = [
        {
            "user": DEFAULT if quota.is_default else quota.user,
            **{column: _text(name, getattr(quota, name)) for name, column in BOUNDS.items()},
            "set_by": quota.set_by or None,
            "set": moment_text(quota.set_ms),
        }
        for quota in quotas
    ]
    session.show(Report([_row(quota) for quota in quotas], (TableSection(columns, rows, empty="no quotas"),)))


@app.command("describe")
@command()
def describe(session: Session, *, user: QuotaUser) -> None:
    """Show the bounds that apply to a user: those of its own quota, else those of '*', else the default.

    \b
    Examples:
      headrace quota describe billing
      headrace quota describe billing --output json
    """
    with session.admin() as admin:
        quotas = {DEFAULT if quota.is_default else quota.user: quota for quota in admin.list_quotas()}
    sources = [name for name in dict.fromkeys((user, "*", DEFAULT)) if name in quotas]
    applied = {
        name: next(
            ((bound, source) for source in sources if (bound := getattr(quotas[source], name)) is not None), (0, None)
        )
        for name in BOUNDS
    }
    document: dict[str, JsonValue] = {"user": user, **{name: bound for name, (bound, _) in applied.items()}}
    document["quota_of"] = {name: source for name, (_, source) in applied.items()}
    columns = (Column("QUOTA", "quota"), Column("BOUND", "bound"), Column("QUOTA OF", "source"))
    rows: list[dict[str, JsonValue]] = [
        {"quota": BOUNDS[name], "bound": _text(name, bound), "source": source}
        for name, (bound, source) in applied.items()
    ]
    session.show(Report(document, (TableSection(columns, rows),)))


@app.command("delete")
@command()
def delete(session: Session, *, user: QuotaUser, yes: Yes = False) -> None:
    """Delete the quota of a user; that of '*' applies to it then, and the default to '*'. Asks first on a terminal.

    \b
    Examples:
      headrace quota delete billing
      headrace quota delete '*' --yes
    """
    confirm(f"Delete the quota of {user}?", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        existed = admin.delete_quota(user)
    if not existed:
        raise CommandFailed(ExitCode.NOT_FOUND, f"{user} has no quota. The quotas: headrace quota list")
    session.show_change({"deleted": user}, f"deleted the quota of {user}")


def _rate(option: str, text: str | None) -> int | None:
    """Return bytes per second; `0` is one, and means no bound."""
    if text is None:
        return None
    return 0 if text == "0" else parse_rate(text, option)


def _text(name: str, bound: int | None) -> str | None:
    """Return a bound for people; `None` if it is not set."""
    if not bound:
        return None if bound is None else "unbounded"
    if "bytes" in name:
        return f"{bytes_text(bound)}/s"
    return str(bound) + {"requests_per_second": "/s", "changes_per_minute": "/min"}.get(name, "")


def _row(quota: "QuotaDescription") -> dict[str, JsonValue]:
    return {
        "user": quota.user,
        **{name: getattr(quota, name) for name in BOUNDS},
        "set_by": quota.set_by or None,
        "set_ms": quota.set_ms or None,
        "is_default": quota.is_default,
    }
