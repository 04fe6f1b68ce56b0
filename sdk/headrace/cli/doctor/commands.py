"""`headrace doctor`: checks every process of the cluster and this machine, and reports problems; bundle."""

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode, exit_code_of
from headrace.cli.common.findings import Finding, Status
from headrace.cli.common.rendering import Column, JsonValue, Note, Report, Section, TableSection
from headrace.cli.common.session import CommandFailed, Session, command
from headrace.cli.doctor.bundle.commands import bundle

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.command("bundle")(bundle)


@app.callback()
@command()
def doctor(
    session: Session,
    *,
    host_only: Annotated[
        bool, typer.Option("--host-only", help="Check only this host, before a cluster is installed.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Also check the disk of DIR; writes a few KiB there."),
    ] = None,
    certificates: Annotated[
        list[Path] | None,
        typer.Option("--certificate", metavar="FILE", help="Also check the certificates in FILE, PEM; repeatable."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 5 also for warnings.")] = False,
) -> None:
    """Check a running cluster and this host, and print what to do.

    It checks each broker and coordinator (reachability, clock, open files, disk and fsync time, certificates, who may
    call, what is open to others on the network), etcd (version, leader, alarms, quota), the credential, and this host
    (limits of files, threads, memory and file size, its clock, and the certificates named). Brokers write and fsync a
    few KiB. Exit code 5 if a check fails, 3 if no coordinator answers, 8 if the caller is refused, and that of
    any other error with which the cluster cannot be asked.

    \b
    Examples:
      headrace doctor
      headrace doctor --output json
      headrace doctor --host-only --data-dir /var/lib/headrace --certificate /etc/headrace/tls.crt
    """
    from headrace.cli.doctor.checks import check_processes
    from headrace.cli.doctor.host import look_at_host
    from headrace.cli.doctor.host_checks import check_host
    from headrace.cli.doctor.identity_checks import check_credential, check_open_access, check_postures, check_refusal
    from headrace.client.base.errors import NoBrokersAvailableError
    from headrace.wire.errors import HeadraceError, NotAuthorizedError, UnauthenticatedError

    now_ms = time.time_ns() // 1_000_000
    findings: list[Finding] = check_host(look_at_host(data_dir, certificates or ()), now_ms)
    failed: ExitCode | None = None
    if not host_only:
        credential = session.credential()
        try:
            with session.admin() as admin:
                caller = admin.who_am_i()
                processes = admin.describe_processes(measure_disk=True)
        except (UnauthenticatedError, NotAuthorizedError) as error:
            failed = ExitCode.DENIED
            findings.append(check_refusal(credential, error))
        except NoBrokersAvailableError as error:
            failed = ExitCode.UNREACHABLE
            action = "Check bootstrap_servers, and that a coordinator runs there."
            findings.append(Finding("cluster", "cluster", Status.FAILURE, error.message, action))
        except HeadraceError as error:
            failed = exit_code_of(error)
            findings.append(Finding("cluster", "cluster", Status.FAILURE, error.message, error.action))
        else:
            findings += check_processes(processes, now_ms)
            findings += check_postures(processes)
            findings += check_open_access(processes)
            findings.append(check_credential(credential, caller))
    counts = Counter(finding.status for finding in findings)
    findings.sort(key=lambda finding: list(Status).index(finding.status))
    _show(session, findings, counts)
    if failed is not None:
        raise CommandFailed(failed)
    if counts[Status.FAILURE] or (strict and counts[Status.WARNING]):
        raise CommandFailed(ExitCode.UNHEALTHY)


def _show(session: Session, findings: list[Finding], counts: Mapping[Status, int]) -> None:
    rows = [finding.document() for finding in findings]
    kinds = (Status.OK, Status.WARNING, Status.FAILURE)
    document: JsonValue = {"counts": {status.value: counts[status] for status in kinds}, "findings": rows}
    columns = (
        Column("STATUS", "status"),
        Column("CHECK", "check"),
        Column("WHERE", "where"),
        Column("FOUND", "found"),
    )
    wrong = [row for row in rows if row["action"]]
    sections: list[Section] = [TableSection(columns, wrong if session.quiet else rows, empty="nothing is wrong")]
    sections += [Note(f"{row['where']}, {row['check']}: {row['action']}") for row in wrong]
    failures, warnings = counts[Status.FAILURE], counts[Status.WARNING]
    sections.append(Note(f"{counted(failures, 'failure')}, {counted(warnings, 'warning')}, {counts[Status.OK]} ok"))
    session.show(Report(document, tuple(sections)))
