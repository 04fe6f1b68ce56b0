"""`headrace doctor bundle`: one archive with what is needed to find out what is wrong with a cluster."""

import platform
import socket
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.moments import lifetime_ms, moment_text
from headrace.cli.common.rendering import Column, JsonValue, Note, Report, Section, TableSection, bytes_text
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, command

SECRET_SETTINGS = ("api_key",)
DEFAULT_MAX_BYTES = 2 << 20


@command()
def bundle(
    session: Session,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The archive; the default is headrace-bundle-TIME.tar.gz in this directory."
        ),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--logs",
            metavar="DIRECTORY",
            help="Take the files NAME.log of DIRECTORY; repeatable. The default is those of `headrace local up` here.",
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="Also read the metrics at URL, such as http://broker-1:9400; repeatable. Logs name further ones.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DURATION", help="Only the lines of logs of the last DURATION, such as 1h."),
    ] = None,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1024, metavar="BYTES", help="Most bytes of each log, the newest ones.")
    ] = DEFAULT_MAX_BYTES,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write an archive about the cluster that can be sent on, without data and secrets.

    It has what doctor finds, state and settings of each process, topics with their settings, partitions and the logs of
    their replicas, groups, the keys in etcd, grants and quotas if there is a credential, metrics, the newest part of
    log files, and versions. README.txt in it says what each file is. It has no keys, values or headers of records, no
    rows, API keys, tokens or passwords. Names of topics, groups, users and hosts are in it.

    What cannot be got is in problems.json, and the archive is written all the same: exit code 1, or 3 if no
    coordinator answers, and 8 if it refuses the caller.

    \b
    Examples:
      headrace doctor bundle
      headrace doctor bundle --logs /var/log/headrace --since 1h --out bundle.tar.gz
      headrace doctor bundle --metrics http://127.0.0.1:9400 --output json
    """
    from headrace.cli.doctor.bundle.archive import write_archive
    from headrace.cli.doctor.bundle.contents import BundleContents
    from headrace.cli.doctor.bundle.documents import BundleDocuments
    from headrace.cli.doctor.bundle.logs import add_logs, find_logs, read_logs
    from headrace.cli.doctor.bundle.metrics import MetricsPages

    now_ms = time.time_ns() // 1_000_000
    since_ms = now_ms - lifetime_ms(since, "--since") if since is not None else 0
    path = out or Path(f"headrace-bundle-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    _check_path(path, force=force)
    contents = BundleContents()
    contents.add_document("versions.json", _versions(), "versions here: headrace, Python, platform and packages")
    client = {name: value for name, value in session.settings().items() if name not in SECRET_SETTINGS}
    contents.add_document("client.json", client, "settings of the command's client, without its API key")
    documents = BundleDocuments(session, contents)
    documents.collect()
    session.note("logs")
    found = read_logs(
        find_logs(logs or (), session.bootstrap_servers, contents),
        since_ms=since_ms,
        max_bytes=max_bytes,
        contents=contents,
    )
    add_logs(found, max_bytes=max_bytes, contents=contents)
    MetricsPages(session, contents).collect(
        metrics or (), [log.metrics_address for log in found if log.metrics_address]
    )
    files = contents.complete(host=socket.gethostname(), moment=moment_text(now_ms) or "", release=__version__)
    try:
        size = write_archive(path, files, at_s=now_ms // 1000, replaces=force)
    except FileExistsError:
        raise _exists(path) from None
    rows: list[dict[str, JsonValue]] = [
        {"name": each.name, "bytes": len(each.content), "about": each.about} for each in files
    ]
    _show(session, path, size, rows, contents.problems)
    if documents.failed is not None:
        raise CommandFailed(documents.failed)
    if contents.problems:
        raise CommandFailed(ExitCode.FAILED)


def _check_path(path: Path, *, force: bool) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise UsageProblem(f"--out {path} is no file in an existing directory")
    if path.exists() and not force:
        raise _exists(path)


def _exists(path: Path) -> UsageProblem:
    return UsageProblem(f"{path} exists; give another --out, or --force to replace it")


def _versions() -> dict[str, JsonValue]:
    packages: dict[str, JsonValue] = {each.name: each.version for each in distributions()}
    return {
        "headrace": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _show(
    session: Session,
    path: Path,
    size: int,
    files: list[dict[str, JsonValue]],
    problems: list[dict[str, JsonValue]],
) -> None:
    document: JsonValue = {"path": str(path), "bytes": size, "files": files, "problems": problems}
    sections: list[Section] = []
    if not session.quiet:
        sections.append(TableSection((Column("FILE", "name"), Column("BYTES", "bytes"), Column("IS", "about")), files))
        if problems:
            sections.append(TableSection((Column("NOT THERE", "what"), Column("REASON", "reason")), problems))
    end = f", {counted(len(problems), 'problem')}" if problems else ""
    sections.append(Note(f"{path}: {counted(len(files), 'file')}, {bytes_text(size)}{end}"))
    session.show(Report(document, tuple(sections)))
