"""`headrace cluster health`: query the cluster, check it (`health.py`), and print the findings, once or repeatedly."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.cluster.health import CatchingUp, catching_up, failure, find_failures, find_notices
from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.findings import Finding
from headrace.cli.common.rendering import JsonValue, Note, Report, Section
from headrace.cli.common.session import CommandFailed, Session, command
from headrace.cli.common.watching import Interval, RateWindow, Screen, WaitTimeout, eta_text, rounds
from headrace.cli.partition.replica_logs import gather_logs, silence_text

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin
    from headrace.client.admin.rpc import ClusterDescription


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at one moment."""

    cluster: "ClusterDescription | None"
    """`None` means that no server answered."""
    problems: list[Finding]
    """Failures, of which a healthy cluster has none."""
    notices: list[Finding] = field(default_factory=list)
    behind: CatchingUp | None = None


@command()
def health(
    session: Session,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Poll until Ctrl-C; show replicas that catch up.")
    ] = False,
    exit_when_healthy: Annotated[
        bool, typer.Option("--exit-when-healthy", help="Poll until the cluster is healthy, then exit with 0.")
    ] = False,
    interval: Interval = 1.0,
    wait_timeout: WaitTimeout = None,
) -> None:
    """Check the health of the cluster, and print each problem with its next step.

    Exit code 5 if there is a problem, also when --wait-timeout is over. Reassignments, drained brokers and leaders that
    are not the preferred ones are shown, and are not problems.

    \b
    Examples:
      headrace cluster health
      headrace cluster health --watch
      headrace cluster health --exit-when-healthy --wait-timeout 300 --quiet
    """
    repeats = watch or exit_when_healthy
    screen, rate = Screen(session.output), RateWindow()
    with session.admin() as admin:
        for elapsed in rounds(interval, wait_timeout if repeats else 0.0):
            picture = _look(admin, outlasts_errors=repeats)
            rate.add(elapsed, -(picture.behind.records if picture.behind else 0))
            report = _report(picture, rate)
            if repeats:
                if watch or not session.quiet:
                    screen.draw(report)
            elif picture.problems or not session.quiet:
                session.show(report)
            if exit_when_healthy and not picture.problems:
                return
    if picture.cluster is None:
        raise CommandFailed(ExitCode.UNREACHABLE, picture.problems[0].found)
    if picture.problems:
        raise CommandFailed(ExitCode.UNHEALTHY)


def _look(admin: "Admin", *, outlasts_errors: bool) -> Picture:
    from headrace.client.base.errors import ConfigError
    from headrace.wire.errors import HeadraceError

    try:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics()
    except ConfigError:
        raise
    except HeadraceError as error:
        if not outlasts_errors:
            raise
        return Picture(None, [failure("unreachable", error.message, error.action or "Look at the servers' logs.")])
    drained, without_etcd = _drained(admin)
    logs, silent = gather_logs(admin, (broker.broker_id for broker in cluster.brokers))
    problems = [*without_etcd, *find_failures(cluster, topics, logs)]
    for broker_id, cause in silent.items():
        action = cause.action or f"Look at the log of broker {broker_id}."
        problems.append(failure("broker_unanswering", silence_text(broker_id, cause), action))
    return Picture(cluster, problems, list(find_notices(cluster, topics, drained)), catching_up(topics, logs))


def _drained(admin: "Admin") -> tuple[list[int], list[Finding]]:
    """Return the drained brokers as etcd has them, and a failure if etcd does not answer.

    A coordinator's cache would hide that etcd is away. Older coordinators do not return them, and are no problem.
    """
    from headrace.wire.errors import HeadraceError, UnsupportedVersionError

    try:
        return admin.drained_brokers(), []
    except UnsupportedVersionError:
        return [], []
    except HeadraceError as error:
        message = f"the coordinators do not reach etcd, so nothing is elected or changed: {error.message}"
        action = "Look at etcd; it needs a majority. Leaders continue without it meanwhile."
        return [], [failure("etcd_unavailable", message, action)]


def _report(picture: Picture, rate: RateWindow) -> Report:
    cluster, behind = picture.cluster, picture.behind
    counts = {
        "brokers": len(cluster.brokers) if cluster else None,
        "coordinators": len(cluster.coordinators) if cluster else None,
        "topics": cluster.topics if cluster else None,
        "partitions": cluster.partitions if cluster else None,
    }
    document: dict[str, JsonValue] = {
        "healthy": not picture.problems,
        **counts,
        "problems": [each.document() for each in picture.problems],
        "notices": [each.document() for each in picture.notices],
        "catching_up": {"replicas": behind.replicas, "records": behind.records} if behind else None,
    }
    numbers = ", ".join(f"{number} {name}" for name, number in counts.items()) if cluster else "not reachable"
    sections: list[Section] = [Note(f"{'unhealthy' if picture.problems else 'healthy'}: {numbers}")]
    sections += [Note(f"* {each.found}\n  -> {each.action}") for each in picture.problems]
    sections += [Note(f"- {each.found}\n  -> {each.action}") for each in picture.notices]
    if behind:
        sections.append(
            Note(
                f"catching up: {counted(behind.replicas, 'replica')}, {counted(behind.records, 'record')} behind, "
                f"{eta_text(rate.seconds_for(behind.records))} to go"
            )
        )
    return Report(document, sections)
