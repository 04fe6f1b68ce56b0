"""The guides about the command line say what the code says, and show only command lines that exist."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from headrace.cli.common.exit_codes import MEANINGS
from headrace.cli.main import command_tree
from headrace.cli.partition import problems as partition_problems
from headrace.cli.records import offsets, record_format
from headrace.cli.records.record_json import parse_json_line

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = ROOT / "docs" / "guides"
GUIDE = (GUIDES / "command-line.md").read_text("utf-8")
OPERATIONS = (GUIDES / "operations-replicas.md").read_text("utf-8")
GROUPS = (GUIDES / "operations-groups.md").read_text("utf-8")


USAGE_ERROR: Any = typer.BadParameter.__base__
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


def mentioned_command_lines() -> list[str]:
    """Every `headrace ...` within a sentence or a table of all pages, with 1 for placeholders such as ID."""
    found = []
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        found += re.findall(r"`(headrace [a-z][^`]*)`", text)
    commands = (_one_command(" ".join(text.split())) for text in dict.fromkeys(found))
    return list(dict.fromkeys(re.sub(r"(?<= )[A-Z]+(?= |$)", "1", text) for text in commands))


def table_of_commands() -> list[tuple[str, ...]]:
    """The commands in the first column of the guide's table."""
    found = []
    for row in re.findall(r"^\| (`[a-z][^|]*) \|", GUIDE.partition("## Shared options")[0], re.MULTILINE):
        names = [tuple(name.split()) for name in re.findall(r"`([^`]+)`", row)]
        group = names[0][:1] if len(names[0]) > 1 else ()
        found += names[:1] + [(*group, *name) for name in names[1:]]
    return found


def test_the_table_has_every_command() -> None:
    """Each once; those of a group follow its first one."""
    every: list[tuple[str, ...]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        children = getattr(command, "commands", {})
        if path and (not children or command.invoke_without_command):
            every.append(path)
        for name, child in children.items():
            walk(child, (*path, name))

    walk(TREE, ())
    assert sorted(table_of_commands()) == sorted(every)


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
    command, words = command_of(line)
    assert not hasattr(command, "commands") or command.invoke_without_command
    with command.make_context(command.name, words) as context:
        if context.params.get("offsets"):
            offsets.parse_offsets(context.params["offsets"])
        if context.params.get("format_text"):
            record_format.compile_format(context.params["format_text"])


@pytest.mark.parametrize("line", mentioned_command_lines())
def test_every_mentioned_command_exists(line: str) -> None:
    """Its subcommand and options do; arguments, and the value of the last option, may be left out."""
    assert mistake_in(line) == ""


def test_a_mentioned_command_that_does_not_exist_is_found() -> None:
    """An argument too many, an unknown option, an unknown subcommand."""
    for line in ("headrace grants ada", "headrace topic alter payroll --set audit=read", "headrace topic heal"):
        assert mistake_in(line)


def mistake_in(line: str) -> str:
    """Return what the command line would refuse, but for what is left out; empty if nothing."""
    command, words = command_of(line)
    if hasattr(command, "commands") and not command.invoke_without_command:
        return f"{command.name} has no {words[0]}" if words else ""
    try:
        command.make_context(command.name, words).close()
    except USAGE_ERROR as error:
        message: str = error.format_message()
        return "" if message.startswith("Missing ") or "requires an argument" in message else message
    return ""


def command_of(line: str) -> tuple[Any, list[str]]:
    """Return the command of a line, and the words behind its name."""
    words = shlex.split(line)[1:]
    command = TREE
    while hasattr(command, "commands") and (words[:1] or [""])[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command, words


def test_the_record_on_the_page_is_a_record() -> None:
    """The JSON of the page is read by `produce --input json`."""
    (block,) = re.findall(r"^```json\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    record = parse_json_line(block.replace("\n", " ").encode())
    assert (record.key, record.headers) == (b"user-1", (("trace", b"\x00\xff"),))
