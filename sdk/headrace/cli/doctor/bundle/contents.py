"""Contents of a bundle while it is collected: files in memory, and what could not be got."""

import json
from dataclasses import dataclass, field

from headrace.cli.common.arguments import counted
from headrace.cli.common.rendering import JsonValue, bytes_text
from headrace.cli.doctor.bundle.redaction import redact_document, redact_text

MAX_DOCUMENT_BYTES = 8 << 20
MAX_BUNDLE_BYTES = 256 << 20
PROBLEMS_FILE = "problems.json"
README_FILE = "README.txt"

_README = """\
This is a debug bundle of a headrace cluster, written by `headrace doctor bundle` on {host}
at {moment}, with release {release}.

It has no keys, values or headers of records, no rows of tables, no API keys, tokens, passwords or
private keys. Names of topics, groups, users, hosts and files are in it. Times are UTC.

{problems}

{files}
"""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """File of a bundle."""

    name: str
    """Path in the archive, below its folder."""
    content: bytes
    about: str
    """What it is, in a few words: often the command that prints it."""


@dataclass(slots=True)
class BundleContents:
    """Files and problems, in the order in which they were found. Belongs to the command's thread."""

    files: list[BundleFile] = field(default_factory=list)
    problems: list[dict[str, JsonValue]] = field(default_factory=list)
    _bytes: int = 0

    def add_document(self, name: str, document: JsonValue, about: str) -> None:
        """Add a document as JSON, without secrets."""
        text = json.dumps(redact_document(document), indent=1, ensure_ascii=False)
        self.add_text(name, text + "\n", about, max_bytes=MAX_DOCUMENT_BYTES)

    def add_text(self, name: str, text: str, about: str, *, max_bytes: int) -> None:
        """Add a text that has no secrets. One of more than `max_bytes`, or beyond the bundle's bound, is a problem."""
        content = text.encode(errors="backslashreplace")
        if len(content) > max_bytes:
            self.add_problem(name, f"left out: it has {bytes_text(len(content))}, the most is {bytes_text(max_bytes)}")
        elif self._bytes + len(content) > MAX_BUNDLE_BYTES:
            self.add_problem(name, f"left out: the bundle has {bytes_text(self._bytes)} already")
        else:
            self._bytes += len(content)
            self.files.append(BundleFile(name, content, about))

    def add_problem(self, what: str, reason: str) -> None:
        """Add an entry to `problems.json`."""
        self.problems.append({"what": what, "reason": redact_text(" ".join(reason.split()))})

    def complete(self, *, host: str, moment: str, release: str) -> list[BundleFile]:
        """Return all files, with those that describe the bundle first."""
        problems = json.dumps(self.problems, indent=1, ensure_ascii=False) + "\n"
        described = [
            BundleFile(PROBLEMS_FILE, problems.encode(errors="backslashreplace"), "what could not be got, and why"),
            *self.files,
        ]
        width = max(len(each.name) for each in described)
        readme = _README.format(
            host=host,
            moment=moment,
            release=release,
            problems=f"{PROBLEMS_FILE} has {counted(len(self.problems), 'problem')}: what could not be got."
            if self.problems
            else "All could be got.",
            files="\n".join(f"{each.name:<{width}}  {each.about}" for each in described),
        )
        return [BundleFile(README_FILE, readme.encode(errors="backslashreplace"), "what each file is"), *described]
