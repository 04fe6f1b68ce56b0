"""Topics of the cluster that the caller may not describe: lists of topics leave them out without an error."""

from typing import TYPE_CHECKING

from headrace.cli.common.arguments import counted

if TYPE_CHECKING:
    from headrace.cli.common.session import Session

HIDDEN_ACTION = "let an administrator run the command, or grant describe on topic:__* and topic:headrace-mirrors"


def hidden_text(hidden: int) -> str:
    """Return the statement that topics are not shown, for a sentence."""
    return f"{counted(hidden, 'topic')} of the cluster {'is' if hidden == 1 else 'are'} not shown to you"


def warn_of_hidden(session: "Session", hidden: int, effect: str) -> None:
    """Print a warning if topics are not shown to the caller; `effect` ends the sentence."""
    if hidden:
        session.note(f"warning: {hidden_text(hidden)}, {effect}")
