"""`headrace broker drain` and `undrain`: take a broker out of service without an interruption, and back.

A drained broker leads nothing and gets no new replicas, but continues to copy, so that its replicas count.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.hidden_topics import HIDDEN_ACTION, warn_of_hidden
from headrace.cli.common.rendering import JsonValue, Note, Report
from headrace.cli.common.session import CommandFailed, DryRun, Session, command
from headrace.cli.common.watching import Interval, Screen, WaitTimeout, rounds

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin

BrokerId = Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id.")]

MAX_NAMED = 5
"""Maximum partitions named in a sentence before `and n more`."""


@dataclass(frozen=True, slots=True)
class LedPartitions:
    """Partitions that a broker leads at one time."""

    registered: bool
    leads: int
    # Partitions without another broker that is in sync, registered and not draining.
    stuck: tuple[str, ...]
    # Topics that the caller is not shown; the broker may lead partitions of them.
    hidden: int


@command()
def drain(
    session: Session,
    *,
    broker_id: BrokerId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it leads no partition.")] = False,
    interval: Interval = 0.5,
    wait_timeout: WaitTimeout = 60.0,
    dry_run: DryRun = False,
) -> None:
    """Move leadership off a broker, and assign it no new replicas until `undrain`.

    Its replicas stay and continue to copy. It can be stopped when it leads no partition; `partition reassign
    --remove-broker` moves its replicas as well. Exit code 6 if it still leads some after --wait-timeout; it stays
    drained. Exit code 1 with --wait if not all topics are shown to you.

    \b
    Examples:
      headrace broker drain 2 --dry-run
      headrace broker drain 2 --wait
      headrace broker drain 2 --wait --wait-timeout 300
    """
    with session.admin() as admin:
        before = _leadership(admin, broker_id)
        if dry_run and not before.registered:
            raise CommandFailed(ExitCode.NOT_FOUND, f"broker {broker_id} is not registered")
        unchanged = False if dry_run else admin.drain_broker(broker_id).unchanged
        now = before
        if wait and not dry_run:
            screen = Screen(session.output)
            for _ in rounds(interval, wait_timeout):
                now = _leadership(admin, broker_id)
                if not session.quiet:
                    screen.draw(_progress(broker_id, before.leads, now))
                if not now.leads:
                    break
    verb = "would drain" if dry_run else "already drained:" if unchanged else "drained"
    sentence = f"{verb} broker {broker_id}; it leads {counted(now.leads, 'partition')}"
    warn_of_hidden(session, now.hidden, f"and broker {broker_id} may lead partitions of them")
    if now.stuck:
        session.note(f"warning: {_stuck_text(now.stuck)}")
    if not wait or dry_run:
        document: dict[str, JsonValue] = {
            "broker_id": broker_id,
            "drained": not dry_run,
            "unchanged": unchanged,
            "leads": now.leads,
            "stuck": list(now.stuck),
            "hidden_topics": now.hidden,
            "dry_run": dry_run,
        }
        session.show_change(document, sentence)
    elif now.leads:
        raise CommandFailed(
            ExitCode.TIMED_OUT, f"broker {broker_id} still leads {counted(now.leads, 'partition')}; it stays drained"
        )
    elif now.hidden:
        raise CommandFailed(ExitCode.FAILED, f"it is unknown whether broker {broker_id} leads any: {HIDDEN_ACTION}")


@command()
def undrain(session: Session, *, broker_id: BrokerId, dry_run: DryRun = False) -> None:
    """Allow a broker to lead and to get new replicas again. It need not be alive.

    Leadership returns with the next preferred election: automatically after minutes, or by `partition elect`.

    \b
    Examples:
      headrace broker undrain 2
      headrace broker undrain 2 && headrace partition elect
    """
    with session.admin() as admin:
        unchanged = broker_id not in admin.drained_brokers() if dry_run else admin.undrain_broker(broker_id).unchanged
    document: dict[str, JsonValue] = {"broker_id": broker_id, "unchanged": unchanged, "dry_run": dry_run}
    verb = "would undrain" if dry_run else "undrained"
    session.show_change(document, f"broker {broker_id} was not drained" if unchanged else f"{verb} broker {broker_id}")


def _leadership(admin: "Admin", broker_id: int) -> LedPartitions:
    cluster, topics = admin.describe_cluster(), admin.describe_topics()
    brokers = cluster.brokers
    able = {each.broker_id for each in brokers if not each.draining} - {broker_id}
    led = [(topic.name, each) for topic in topics for each in topic.partitions if each.leader_id == broker_id]
    stuck = tuple(f"{name}-{each.partition}" for name, each in led if not able & set(each.in_sync_replicas))
    registered = any(each.broker_id == broker_id for each in brokers)
    return LedPartitions(registered, len(led), stuck, cluster.count_hidden(topics))


def _progress(broker_id: int, at_first: int, now: LedPartitions) -> Report:
    document: dict[str, JsonValue] = {
        "broker_id": broker_id,
        "drained": True,
        "leads": now.leads,
        "leads_at_first": at_first,
        "stuck": list(now.stuck),
        "hidden_topics": now.hidden,
    }
    nothing = "leads nothing that is shown to you" if now.hidden else "leads nothing"
    rest = f"leads {counted(now.leads, 'partition')} of {at_first}" if now.leads else nothing
    return Report(document, (Note(f"broker {broker_id} is drained and {rest}"),))


def _stuck_text(stuck: tuple[str, ...]) -> str:
    names = ", ".join(stuck[:MAX_NAMED]) + (f" and {len(stuck) - MAX_NAMED} more" if len(stuck) > MAX_NAMED else "")
    return f"no other broker that is in sync can lead {names}; bring back or add replicas"
