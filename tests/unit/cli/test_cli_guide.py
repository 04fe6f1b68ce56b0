"""The guides about the command line say what the code says, and show only command lines that exist."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.common.exit_codes import MEANINGS
from headrace.cli.main import command_tree
from headrace.cli.partition import problems as partition_problems
from headrace.cli.records import offsets, record_format
from headrace.cli.records.record_json import parse_json_line

GUIDES = Path(__file__).resolve().parents[3] / "docs" / "guides"
GUIDE = (GUIDES / "command-line.md").read_text("utf-8")
OPERATIONS = (GUIDES / "operations-replicas.md").read_text("utf-8")
GROUPS = (GUIDES / "operations-groups.md").read_text("utf-8")


TREE: Any = command_tree.__wrapped__()
"""Of its own: a command remembers the help options of its first context, and these here have no parent."""


def shown_command_lines() -> list[str]:
    """Every `headrace ...` in the shell blocks of all guides, without comments, pipes and redirections."""
    found = []
    for page in sorted(GUIDES.glob("*.md")):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found += [_one_command(text) for text in re.findall(r"(?:^|[|(;] ?)(headrace .*)", line)]
    return list(dict.fromkeys(found))


def _one_command(text: str) -> str:
    """Return the words of the first command in a line of the shell."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|<>;&()")
    lexer.whitespace_split = True
    return shlex.join(itertools.takewhile(lambda word: word[:1] not in tuple(lexer.punctuation_chars), lexer))


def test_tables_are_those_of_the_code() -> None:
    """Exit codes, offset grammar and format letters are on the page as they are."""
    for code, meaning in MEANINGS.items():
        assert f"| {int(code)} | {code.name.lower()} | {meaning} |" in GUIDE
    assert offsets.GRAMMAR in GUIDE
    assert record_format.LETTERS in GUIDE
    for problem, meaning in partition_problems.MEANINGS.items():
        assert f"| {problem.value} | {meaning} |" in OPERATIONS


def help_examples() -> dict[str, list[str]]:
    """The lines below `Examples:` of every command that asks the cluster."""
    found: dict[str, list[str]] = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*path, name))
        if any("--bootstrap-servers" in parameter.opts for parameter in command.params):
            examples = (command.help or "").partition("Examples:")[2]
            found[" ".join(("headrace", *path))] = [line.strip() for line in examples.splitlines() if line.strip()]

    walk(TREE, ())
    return found


EXAMPLES = help_examples()


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_command_has_examples_of_itself(command: str) -> None:
    """Two at least, so that one shows an option; each begins with the command."""
    assert len(EXAMPLES[command]) >= 2
    assert all(line.startswith(command) for line in EXAMPLES[command])


@pytest.mark.parametrize(
    "line", [*shown_command_lines(), *(re.split(r" [>&]", line)[0] for lines in EXAMPLES.values() for line in lines)]
)
def test_every_command_line_parses(line: str) -> None:
    """Commands and options exist, and offsets and formats are well formed."""
    words = shlex.split(line)[1:]
    command = TREE
    while hasattr(command, "commands") and (words[:1] or [""])[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or command.invoke_without_command
    with command.make_context(command.name, words) as context:
        if context.params.get("offsets"):
            offsets.parse_offsets(context.params["offsets"])
        if context.params.get("format_text"):
            record_format.compile_format(context.params["format_text"])


def test_the_record_on_the_page_is_a_record() -> None:
    """The JSON of the page is read by `produce --input json`."""
    (block,) = re.findall(r"^```json\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    record = parse_json_line(block.replace("\n", " ").encode())
    assert (record.key, record.headers) == (b"user-1", (("trace", b"\x00\xff"),))
