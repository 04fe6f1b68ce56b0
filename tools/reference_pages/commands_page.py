"""Generator of docs/reference/commands.md: all commands of `headrace` with their arguments, options and examples."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import typer
from headrace.cli.main import app

from reference_pages.markdown import table

_INTRO = """# Commands

Every command of `headrace`. [The command line](../guides/command-line.md) describes common behavior."""

_SHARED = (
    "output",
    "bootstrap_servers",
    "timeout",
    "quiet",
    "verbose",
    "security_protocol",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_server_name",
    "api_key_file",
    "token_file",
    "allow_plaintext_credentials",
)
_EXAMPLES = "Examples:"
_HEAD = ("option", "meaning")


def commands_body() -> str:
    """Return the page from its title."""
    return commands_text(_INTRO, leaves(typer.main.get_command(app), ("headrace",)), _SHARED)


def commands_text(intro: str, commands: Sequence[tuple[tuple[str, ...], Any]], shared_names: Sequence[str]) -> str:
    """Return a page of commands: first the options common to all, then each command with its own.

    Args:
        intro: Title and text before the first heading.
        commands: Words of each command line, and the command.
        shared_names: Parameters described once, in this order.
    """
    shared: dict[str, tuple[str, str]] = {}
    sections: list[str] = []
    for path, command in commands:
        words, _, examples = inspect.cleandoc(command.help or "").replace("\b", "").partition(_EXAMPLES)
        own: list[tuple[str, str]] = []
        with command.make_context(path[-1], [], resilient_parsing=True) as context:
            for parameter in command.params:
                name, meaning = parameter.get_help_record(context)
                meaning = meaning.replace("*", "\\*")
                if not parameter.opts[0].startswith("-"):
                    name = name.partition(" <")[0]  # The type of an argument only repeats its name.
                if parameter.name in shared_names:
                    shared.setdefault(parameter.name, (f"`{name}`", meaning))
                else:
                    own.append((f"`{name}`", meaning))
        sections += [f"## {' '.join(path)}", words.strip()]
        sections += [table(_HEAD, own)] if own else []
        sections += [f"```sh\n{inspect.cleandoc(examples)}\n```"] if examples else []
    return "\n\n".join([intro, "## Shared options", table(_HEAD, [shared[name] for name in shared_names]), *sections])


def leaves(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    """Return the commands below a group, in its order; first the group itself if it is a command, too."""
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    own = [(path, command)] if command.invoke_without_command else []
    return own + [found for name, child in children.items() for found in leaves(child, (*path, name))]
