"""Log files of a bundle: those of a local cluster, or of given directories; their newest part, without secrets.

A data directory has files `*.log` of records. These are never read: they are known by their names, directories are
not searched below, links are not followed, and a file that is no text is refused.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headrace.cli.doctor.bundle.contents import BundleContents
from headrace.cli.doctor.bundle.redaction import redact_log

STATE_FILE = Path(".headrace/cluster.json")
"""State of the cluster of `headrace local up`, in the working directory."""
MAX_LOG_FILES = 64
HEAD_BYTES = 64 << 10
"""Beginning of a log that is searched for the address of the metrics, as its end is."""
_SEGMENT = re.compile(r"\d{20}\.log")
_NAME = re.compile(r".+\.log(?:\.\d+)?")
_MOMENT = re.compile(r"(?<![\d-])\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)")
_MOMENT_WITHIN = 400
"""Characters of a line in which its time is."""
_METRICS = re.compile(r"""\bmetrics_address["']?\s?[=:]\s?["']?([\w.:\[\]-]+:\d+)""")


@dataclass(frozen=True, slots=True)
class LogText:
    """Newest part of a log file."""

    name: str
    text: str
    """As in the file, from the beginning of a line."""
    metrics_address: str
    """Address at which the process of the log served metrics when it last said so; empty if it did not."""


def find_logs(directories: Sequence[Path], bootstrap_servers: str, contents: BundleContents) -> list[Path]:
    """Return the log files of the directories, without them those of the local cluster with these addresses."""
    found: list[Path] = []
    for directory in directories:
        here = [each for each in _files_of(directory, contents) if _is_log(each)]
        if not here:
            contents.add_problem("logs", f"{directory} has no files NAME.log of text")
        found += here
    if not directories:
        found = [each for each in _local_logs(bootstrap_servers) if _is_log(each)]
        if not found:
            contents.add_problem("logs", f"no local cluster of {bootstrap_servers} here; give --logs DIRECTORY")
    if len(found) > MAX_LOG_FILES:
        contents.add_problem("logs", f"only the newest {MAX_LOG_FILES} of {len(found)} log files are read")
        found = sorted(found, key=lambda path: path.stat().st_mtime)[-MAX_LOG_FILES:]
    return found


def read_logs(paths: Iterable[Path], *, since_ms: int, max_bytes: int, contents: BundleContents) -> list[LogText]:
    """Return the newest part of each file, lines since a time in ms since 1970; 0 means all. Names are unique."""
    found: dict[str, LogText] = {}
    for path in paths:
        name = path.name if path.name not in found else f"{len(found)}-{path.name}"
        try:
            head, tail = _ends(path, max_bytes)
        except OSError as error:
            contents.add_problem(f"logs/{name}", f"{path}: {error.strerror}")
            continue
        if b"\0" in head or b"\0" in tail:
            contents.add_problem(f"logs/{name}", f"{path} is no text, so it is left out")
            continue
        text = tail.decode(errors="backslashreplace")
        addresses = _METRICS.findall(head.decode(errors="backslashreplace") + "\n" + text)
        found[name] = LogText(name, lines_since(text, since_ms), addresses[-1] if addresses else "")
    return list(found.values())


def add_logs(logs: Iterable[LogText], *, max_bytes: int, contents: BundleContents) -> None:
    """Add the logs to the bundle, without secrets."""
    for log in logs:
        text = redact_log(log.text)
        kept = text.encode()[-max_bytes:].decode(errors="replace")  # The words in place of a secret may be longer.
        contents.add_text(f"logs/{log.name}", kept, "newest part of the log", max_bytes=4 * max_bytes)


def lines_since(text: str, since_ms: int) -> str:
    """Return the lines from the first that has a time of `since_ms` or later; a line without a time belongs to the one
    before. All lines if none has a time.
    """
    if not since_ms:
        return text
    position, has_moment = 0, False
    for line in text.splitlines(keepends=True):
        found_ms = _moment_ms(line)
        if found_ms is not None:
            has_moment = True
            if found_ms >= since_ms:
                return text[position:]
        position += len(line)
    return "" if has_moment else text


def _moment_ms(line: str) -> float | None:
    found = _MOMENT.search(line[:_MOMENT_WITHIN])
    try:
        return datetime.fromisoformat(found[0]).timestamp() * 1000 if found else None
    except ValueError:  # Such as 0000-00-00 00:00:00Z.
        return None


def _ends(path: Path, max_bytes: int) -> tuple[bytes, bytes]:
    """Return the beginning of a file, and its newest whole lines."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        size = file.seek(0, 2)
        start = max(0, size - max_bytes)
        file.seek(start)
        tail = file.read(max_bytes)
    return head, tail.partition(b"\n")[2] if start else tail


def _is_log(path: Path) -> bool:
    is_named = _NAME.fullmatch(path.name) is not None and _SEGMENT.fullmatch(path.name) is None
    return is_named and path.is_file() and not path.is_symlink()


def _files_of(directory: Path, contents: BundleContents) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        contents.add_problem("logs", f"{directory}: {error.strerror}")
        return []


def _local_logs(bootstrap_servers: str) -> list[Path]:
    """Return the log files that the state of the local cluster names, if it is the cluster that is asked."""
    try:
        state = json.loads(STATE_FILE.read_text(encoding="utf-8"))
        addresses = {str(part["address"]) for part in state["parts"]}
        logs = [Path(part["log_file"]) for part in state["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    asked = {each.strip().replace("localhost:", "127.0.0.1:") for each in bootstrap_servers.split(",")}
    return logs if asked & addresses else []
