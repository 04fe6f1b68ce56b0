"""`headrace completion`: scripts for command-line completion in a shell.

The scripts use typer's protocol of environment variables: the shell calls `headrace` with `_HEADRACE_COMPLETE` set,
and typer prints the completions.
"""

import enum
from typing import Annotated

import typer

from headrace.cli.common.session import write_out

PROGRAM = "headrace"
COMPLETE_VARIABLE = "_HEADRACE_COMPLETE"


class Shell(enum.StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


WHERE = {
    Shell.BASH: 'eval "$(headrace completion bash)"   # in ~/.bashrc',
    Shell.ZSH: 'eval "$(headrace completion zsh)"    # in ~/.zshrc, after compinit',
    Shell.FISH: "headrace completion fish | source     # in ~/.config/fish/config.fish",
}


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", case_sensitive=False)]) -> None:
    """Print the completion script of a shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # imported there, not marked

    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell.value)
    write_out(f"# {WHERE[shell]}\n{script}\n")
