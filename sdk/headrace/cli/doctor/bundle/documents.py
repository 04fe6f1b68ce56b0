"""Documents of a bundle: what the commands print with `--output json`, and the state of each process.

Each command runs in this process as it would run alone, with the credential and the addresses of the bundle. So a file
of the bundle is what its command prints, and a command that fails is a problem and not the end.
"""

import contextlib
import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import JsonValue
from headrace.cli.common.security_options import CREDENTIALS
from headrace.cli.common.session import Session
from headrace.cli.doctor.bundle.contents import BundleContents

MAX_TOPICS = MAX_GROUPS = 200
"""Those described one by one; the lists have all."""
MAX_SECONDS = 60.0
"""Time to begin descriptions of topics, and of groups: a broker that hangs costs each of them a timeout."""

_CLUSTER = (
    ("doctor.json", ("doctor",)),
    ("cluster.json", ("cluster", "describe")),
    ("health.json", ("cluster", "health")),
    ("brokers.json", ("broker", "list")),
    ("topics.json", ("topic", "list")),
    ("partitions.json", ("partition", "list")),
    ("reassignments.json", ("partition", "list", "--problem", "moving")),
    ("groups.json", ("group", "list")),
)
_IDENTITY = (
    ("caller.json", ("auth", "whoami")),
    ("grants.json", ("grants",)),
    ("quotas.json", ("quota", "list")),
)
"""Asked only with a credential: without one they are refused, also in a cluster that is open to all."""
_METADATA = ("cluster", "dump")
_NOT_METADATA = ("/identity/", "/schema_registry/")
"""Users, with the descriptions that people typed, and the texts of schemas."""
_FOUND_SOMETHING = (ExitCode.OK, ExitCode.UNHEALTHY)


class BundleDocuments:
    """Collects the documents. Belongs to the command's thread."""

    def __init__(self, session: Session, contents: BundleContents) -> None:
        self._session = session
        self._contents = contents
        self.failed: ExitCode | None = None
        """Exit code of the description of the cluster, if it failed."""

    def collect(self) -> None:
        """Collect all documents of the cluster. One that does not answer at all is asked once for each kind."""
        found = {name: self._add(name, command) for name, command in _CLUSTER}
        if self.failed is not None:
            return
        self._add_processes()
        if self._session.credential() is not None:
            for name, command in _IDENTITY:
                self._add(name, command)
        self._add_metadata()
        brokers = _names(found["brokers.json"], "broker_id")
        for broker_id in brokers:
            self._add(f"brokers/{broker_id}.json", ("broker", "describe"), broker_id)
        self._tell_missing(found["partitions.json"], brokers)
        self._add_each("topics", ("topic", "describe"), _names(found["topics.json"], "name"), MAX_TOPICS)
        groups = _names(found["groups.json"], "group_id")
        self._add_each("groups", ("group", "describe", "--no-time"), groups, MAX_GROUPS)

    def _add(self, file: str, command: Sequence[str], *names: str) -> JsonValue:
        """Run a command, add its document, and return it; `None` if it has none."""
        if self.failed is not None:
            return None
        code, document = self._run(file, command, *names)
        if document is not None:
            self._contents.add_document(file, document, f"headrace {' '.join((*command, *names))} --output json")
        if file == "cluster.json" and code != ExitCode.OK:
            self.failed = ExitCode(code)
        return document

    def _run(self, file: str, command: Sequence[str], *names: str) -> tuple[int, JsonValue]:
        self._session.note(f"headrace {' '.join((*command, *names))}")
        out, told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        arguments = [*command, "--output", "json", *self._connection(), *(("--", *names) if names else ())]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            code = self._session.run_command(arguments)
        if code == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        for line in told.getvalue().splitlines():
            self._contents.add_problem(file, line.removeprefix("headrace: "))
        out.seek(0)
        text = out.read()
        if code not in _FOUND_SOMETHING and not told.getvalue() and not text:
            self._contents.add_problem(file, f"exit code {code}")
        return code, json.loads(text) if text else None

    def _connection(self) -> list[str]:
        """Return the options of the connection. An API key of the environment is there for every command."""
        options = ["--bootstrap-servers", self._session.bootstrap_servers, "--timeout", str(self._session.timeout)]
        security = self._session.security
        for name, value in security.items():
            if name == "api_key" or ("api_key" in security and name in CREDENTIALS):
                continue
            option = f"--{name.replace('_', '-')}"
            options += [option] if value is True else [option, str(value)]
        return options

    def _add_each(self, folder: str, command: Sequence[str], names: Sequence[str], most: int) -> None:
        until, described = time.monotonic() + MAX_SECONDS, 0
        for name in names[:most]:
            if time.monotonic() > until:
                break
            self._add(f"{folder}/{quote(name, safe='')}.json", command, name)
            described += 1
        if described < len(names):
            why = f"the most is {most}" if described == most else f"they took more than {MAX_SECONDS:.0f} s"
            reason = f"only the first {described} of {len(names)} are described, {why}; {folder}.json has all"
            self._contents.add_problem(folder, reason)

    def _add_processes(self) -> None:
        from headrace.wire.errors import HeadraceError

        self._session.note("state of each process")
        try:
            with self._session.admin() as admin:
                processes = admin.describe_processes(measure_disk=True)
        except HeadraceError as error:
            self._contents.add_problem("processes.json", error.message)
            return
        for process in processes:
            if process.error and not process.answered_by:
                self._contents.add_problem("processes.json", f"{process.name} at {process.address}: {process.error}")
        about = "state, settings, disk, certificates and etcd of each process, as headrace doctor asks for them"
        self._contents.add_document("processes.json", [_plain(asdict(each)) for each in processes], about)

    def _add_metadata(self) -> None:
        _, rows = self._run("metadata.json", _METADATA)
        if isinstance(rows, list):
            kept = [row for row in rows if not any(scope in str(row["key"]) for scope in _NOT_METADATA)]
            about = "headrace cluster dump --output json, without users and schemas"
            self._contents.add_document("metadata.json", kept, about)

    def _tell_missing(self, partitions: JsonValue, brokers: Sequence[str]) -> None:
        """Name brokers that have replicas and are not registered: nothing asks them."""
        held = {broker_id for row in _rows(partitions) for broker_id in row["replicas"]}
        for broker_id in sorted(held - {int(each) for each in brokers}):
            reason = f"broker {broker_id} has replicas and is not registered: its state and its logs are missing"
            self._contents.add_problem(f"brokers/{broker_id}.json", reason)


def _rows(document: JsonValue) -> list[Any]:
    return document if isinstance(document, list) else []


def _names(document: JsonValue, field: str) -> list[str]:
    return [str(row[field]) for row in _rows(document)]


def _plain(value: Any) -> Any:
    """Return a value for JSON, with ids in hexadecimal."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value
