"""What a runbook tells a person to look for or to run is there: events, settings, metrics, commands, chart values."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from headrace.cli.main import app
from headrace.cli.partition.problems import PartitionProblem
from headrace_broker.__main__ import cli as broker_cli
from headrace_server.audit.audit_writer import AUDIT_TOPIC

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
REFERENCE = ROOT / "docs" / "reference"
LEVELS = {"debug", "info", "warning", "error", "exception"}
PLACEHOLDERS = {
    "ID",
    "GROUP",
    "MIRROR",
    "SUBJECT",
    "TOPIC",
    "TOPIC:PARTITION",
    "FILE",
    "N",
    "USER",
    "OPERATION",
    "RESOURCE",
    "ROLE",
    AUDIT_TOPIC,
}
CHOICES = {"--problem": {problem.value for problem in PartitionProblem}}
ELSEWHERE = {"next_offset"}
"""Neither written by a service nor in the reference: an attribute of CorruptBatchError."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def quoted(page: Path) -> list[str]:
    """The texts between backticks, without their line breaks."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text)]


@cache
def log_events() -> frozenset[str]:
    """The first argument of every call of a logger in the services."""
    found = set()
    for path in (ROOT / "services").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]):
                    if level in LEVELS:
                        found.add(event)
    return frozenset(found)


@cache
def named_in(page: str) -> frozenset[str]:
    """The names that a page of the reference has in the first column of its tables."""
    return frozenset(re.findall(r"^\| `([^`]+)` \|", (REFERENCE / page).read_text("utf-8"), re.MULTILINE))


def check_command(command: Any, words: list[str]) -> None:
    """Walk down a tree of commands, and look up options and the words that they take."""
    while hasattr(command, "commands"):
        if command.invoke_without_command and (words[:1] or ["-"])[0].startswith("-"):
            break
        assert words, f"{command.name} wants a subcommand"
        name, *words = words
        assert name in command.commands, f"{command.name} has no subcommand {name}"
        command = command.commands[name]
    options = {flag: each for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    taken = None
    for word in words:
        if word.startswith("-"):
            assert word in options, f"{command.name} has no option {word}"
            taken = None if options[word].is_flag else word
        elif taken is not None:
            assert word in CHOICES.get(taken, {word}), f"{word} is nothing that {taken} takes"
            taken = None
        else:
            assert word in PLACEHOLDERS, f"{word} is no placeholder that the pages use"


def trees() -> Iterator[tuple[str, Any]]:
    """The programs whose commands are looked up."""
    yield "headrace", typer.main.get_command(app)
    yield "headrace-broker", typer.main.get_command(broker_cli)


@every_page
def test_its_commands_are_there(page: Path) -> None:
    """Each subcommand, each option, and each word of a choice."""
    programs = dict(trees())
    for text in quoted(page):
        program, *words = shlex.split(text)
        if program in programs and words:
            check_command(programs[program], words)


@every_page
def test_its_log_events_settings_and_metrics_are_there(page: Path) -> None:
    """A word with underscores is written by a logger, or is in the reference."""
    known = log_events() | named_in("settings.md") | named_in("topic-configs.md") | named_in("metrics.md") | ELSEWHERE
    for text in quoted(page):
        if re.fullmatch(r"[a-z]+(_[a-z0-9]+)+(=\S+)?", text):
            assert text.partition("=")[0] in known, f"{text} is no log event, setting or metric"


@every_page
def test_its_chart_values_are_there(page: Path) -> None:
    """A dotted name that begins as one of the chart's values is one."""
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "headrace" / "values.yaml").read_text("utf-8"))
    for text in quoted(page):
        first, *rest = text.split(".")
        if first in values and rest:
            found = values[first]
            for name in rest:
                assert name in found, f"the chart has no value {text}"
                found = found[name]


def test_what_is_not_there_would_be_noticed() -> None:
    """The checks above look at something, and an invented name does not pass."""
    assert {"log_offline", "view_silent", "registration_lost"} <= log_events()
    assert "replica_fetch_corrupt" in log_events(), "a call of several lines"
    assert "retention_ms" in named_in("topic-configs.md")
    headrace = dict(trees())["headrace"]
    check_command(headrace, ["partition", "list", "--problem", "offline"])
    for wrong in (["partition", "heal"], ["doctor", "--harder"], ["partition", "list", "--problem", "any"], ["group"]):
        with pytest.raises(AssertionError):
            check_command(headrace, wrong)
    commands = [text for page in PAGES for text in quoted(page) if text.startswith("headrace ")]
    assert len(commands) > 20
