"""`headrace quota`: set, list, describe, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import parse_rate
from headrace.cli.common.moments import moment_text
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection, bytes_text
from headrace.cli.common.session import Session, UsageProblem, Yes, command, confirm

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
BOUNDS = (
    "produce_bytes_per_second",
    "fetch_bytes_per_second",
    "requests_per_second",
    "connections",
    "changes_per_minute",
)


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
            help="Administrative requests, and partitions that they create, per minute and server.",
        ),
    ] = None,
) -> None:
    """Bound what each broker, and each coordinator, serves a user. Bounds that are not given stay; 0 removes one.

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
        before = next((quota for quota in admin.list_quotas() if quota.user == user), None)
        bounds = {name: getattr(before, name, 0) for name in BOUNDS} | changed
        admin.put_quota(user, **bounds)
    document: dict[str, JsonValue] = {"user": user, **{name: bound or None for name, bound in bounds.items()}}
    session.show_change(document, f"quota of {user}: {_bounds_text(bounds)}")


@app.command("list")
@command()
def list_quotas(session: Session) -> None:
    """List the quotas.

    \b
    Examples:
      headrace quota list
      headrace quota list --output json
    """
    with session.admin() as admin:
        quotas = admin.list_quotas()
    session.show(Report([_row(quota) for quota in quotas], (_table(quotas),)))


@app.command("describe")
@command()
def describe(session: Session, *, user: QuotaUser) -> None:
    """Show the quota that applies to a user: its own, else that of '*'.

    \b
    Examples:
      headrace quota describe billing
      headrace quota describe billing --output json
    """
    with session.admin() as admin:
        found = {quota.user: quota for quota in admin.list_quotas()}
    applied = [found[name] for name in (user, "*") if name in found][:1]
    document: dict[str, JsonValue] = {"user": user}
    if applied:
        document = {**_row(applied[0]), "user": user, "quota_of": applied[0].user}
    session.show(Report(document, (_table(applied),)))


@app.command("delete")
@command()
def delete(session: Session, *, user: QuotaUser, yes: Yes = False) -> None:
    """Delete the quota of a user; that of '*' applies to it then. Asks first on a terminal.

    \b
    Examples:
      headrace quota delete billing
      headrace quota delete '*' --yes
    """
    confirm(f"Delete the quota of {user}?", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        admin.delete_quota(user)
    session.show_change({"deleted": user}, f"deleted the quota of {user}")


def _table(quotas: "list[QuotaDescription]") -> TableSection:
    columns = (
        Column("USER", "user"),
        Column("PRODUCE", "produce"),
        Column("FETCH", "fetch"),
        Column("REQUESTS", "requests"),
        Column("CONNECTIONS", "connections"),
        Column("CHANGES", "changes"),
        Column("SET BY", "set_by", wide=True),
        Column("SET", "set", wide=True),
    )
    shown: list[dict[str, JsonValue]] = [
        {
            **_row(quota),
            "produce": _per_second(quota.produce_bytes_per_second),
            "fetch": _per_second(quota.fetch_bytes_per_second),
            "requests": f"{quota.requests_per_second}/s" if quota.requests_per_second else None,
            "changes": f"{quota.changes_per_minute}/min" if quota.changes_per_minute else None,
            "set": moment_text(quota.set_ms),
        }
        for quota in quotas
    ]
    return TableSection(columns, shown, empty="no quotas")


def _rate(option: str, text: str | None) -> int | None:
    """Return bytes per second; `0` is one, and means no bound."""
    if text is None:
        return None
    return 0 if text == "0" else parse_rate(text, option)


def _per_second(rate: int) -> str | None:
    return f"{bytes_text(rate)}/s" if rate else None


def _bounds_text(bounds: "dict[str, int]") -> str:
    said = [
        (bytes_text(bounds["produce_bytes_per_second"]), "/s produced", bounds["produce_bytes_per_second"]),
        (bytes_text(bounds["fetch_bytes_per_second"]), "/s fetched", bounds["fetch_bytes_per_second"]),
        (str(bounds["requests_per_second"]), " requests/s", bounds["requests_per_second"]),
        (str(bounds["connections"]), " connections", bounds["connections"]),
        (str(bounds["changes_per_minute"]), " changes/min", bounds["changes_per_minute"]),
    ]
    return ", ".join(f"{number}{unit}" for number, unit, bound in said if bound) or "no bounds"


def _row(quota: "QuotaDescription") -> dict[str, JsonValue]:
    return {
        "user": quota.user,
        **{name: getattr(quota, name) or None for name in BOUNDS},
        "set_by": quota.set_by or None,
        "set_ms": quota.set_ms or None,
    }
