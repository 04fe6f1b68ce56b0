"""`headrace cluster balance`: plan and start moves that balance the brokers."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import parse_rate
from headrace.cli.common.hidden_topics import warn_of_hidden
from headrace.cli.common.rendering import Column, JsonValue, Note, Section, TableSection, bytes_text
from headrace.cli.common.session import DryRun, Session, Yes, command
from headrace.cli.common.watching import Interval, WaitTimeout
from headrace.cli.partition.reassign_run import MoveRun, Throttle, Watch
from headrace.placement.load import MAX_RATIO

if TYPE_CHECKING:
    from headrace.client.admin.balance import BalancePlan


class BalanceMeasure(StrEnum):
    """What is balanced."""

    REPLICAS = "replicas"
    LOAD = "load"


@command()
def balance(
    session: Session,
    *,
    by: Annotated[
        BalanceMeasure,
        typer.Option("--by", help="Numbers of replicas, or the load that brokers measure: bytes and requests."),
    ] = BalanceMeasure.REPLICAS,
    max_ratio: Annotated[
        float | None,
        typer.Option(
            "--max-ratio",
            metavar="RATIO",
            help="With --by load: highest load of a broker, as a multiple of the mean.",
            show_default=str(MAX_RATIO),
        ),
    ] = None,
    throttle: Throttle = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    watch: Watch = False,
    interval: Interval = 1.0,
    wait_timeout: WaitTimeout = None,
) -> None:
    """Balance the brokers of the cluster. Prints the plan, which the cluster has checked, and asks first on a terminal.

    The plan keeps the placement of every topic, and moves partitions that differ from it, for example after a change of
    it. With --by load it has the fewest moves it can find after which no broker has more than --max-ratio times the
    mean load; another leader alone copies nothing.

    \b
    Examples:
      headrace cluster balance --by load --dry-run
      headrace cluster balance --by load --throttle 50MiB --watch
      headrace cluster balance --by load --dry-run --output json > plan.json
      headrace cluster balance
    """
    if max_ratio is not None and by is not BalanceMeasure.LOAD:
        raise typer.BadParameter("it needs --by load", param_hint="--max-ratio")
    rate = parse_rate(throttle) if throttle is not None else 0
    with session.admin() as admin:
        plan = admin.plan_balance(by.value, max_ratio=MAX_RATIO if max_ratio is None else max_ratio)
        warn_of_hidden(session, plan.hidden_topics, "and the plan neither counts nor moves their replicas")
        run = MoveRun(session, admin, rate, yes=yes, dry_run=dry_run, fields=_fields(plan), heading=_heading(plan))
        run.start(plan.moves, watch=watch, interval=interval, wait_timeout=wait_timeout)


def _fields(plan: "BalancePlan") -> dict[str, JsonValue]:
    return {
        "by": plan.by,
        "ratio_before": round(plan.ratio_before, 3),
        "ratio_after": round(plan.ratio_after, 3),
        "brokers": [
            {"broker_id": broker_id, "before": round(before), "after": round(plan.after[broker_id])}
            for broker_id, before in plan.before.items()
        ],
        "hidden_topics": plan.hidden_topics,
    }


def _heading(plan: "BalancePlan") -> tuple[Section, ...]:
    unit = "LOAD" if plan.by == "load" else "REPLICAS"
    columns = (Column("BROKER", "broker_id"), Column(f"{unit} BEFORE", "before"), Column(f"{unit} AFTER", "after"))

    def text(amount: float) -> JsonValue:
        return f"{bytes_text(round(amount))}/s" if plan.by == "load" else round(amount)

    rows: list[dict[str, JsonValue]] = [
        {"broker_id": broker_id, "before": text(before), "after": text(plan.after[broker_id])}
        for broker_id, before in plan.before.items()
    ]
    ratios = f"highest / mean: {plan.ratio_before:.2f} now, {plan.ratio_after:.2f} after the plan"
    return TableSection(columns, rows, empty="no broker receives replicas"), Note(ratios)
