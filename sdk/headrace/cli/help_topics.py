"""`headrace help TOPIC`: pages for subjects that are too long for a command's help."""

import enum
from typing import Annotated

import typer

from headrace.cli.common.exit_codes import exit_code_table
from headrace.cli.common.session import write_out
from headrace.cli.records import offsets, record_format


class HelpTopic(enum.StrEnum):
    """Subjects of help pages."""

    EXIT_CODES = "exit-codes"
    OFFSETS = "offsets"
    FORMAT = "format"
    RECORDS = "records"


RECORDS = """\
Records as JSON, one object per line, as `consume --output json` writes and `produce --input json` reads:

  {"topic": "clicks", "partition": 0, "offset": 42, "timestamp_ms": 1764000000000,
   "key": "user-1", "value": "text", "headers": [{"key": "trace", "value": {"base64": "AP8="}}]}

Keys, values and header values are bytes. Bytes that are UTF-8 are a string, other bytes are {"base64": "..."}, an
absent one is null. On input only `value` is required, headers may also be {"name": "value"}, and topic, partition and
offset are ignored: the options of `produce` select the topic and partition.
"""


def help_page(topic: HelpTopic) -> str:
    """Return the page of a topic."""
    match topic:
        case HelpTopic.EXIT_CODES:
            return exit_code_table()
        case HelpTopic.OFFSETS:
            return f"Offsets, for `headrace consume -o`:\n{offsets.GRAMMAR}\n"
        case HelpTopic.FORMAT:
            return f"Formats, for `headrace consume -f`:\n{record_format.LETTERS}\n"
        case HelpTopic.RECORDS:
            return RECORDS


def help_command(
    ctx: typer.Context,
    topic: Annotated[HelpTopic | None, typer.Argument(help="The help topic.", case_sensitive=False)] = None,
) -> None:
    """Explain exit codes, the offset grammar, format strings, or records as JSON."""
    if topic is not None:
        write_out(help_page(topic))
        return
    write_out(ctx.find_root().get_help() + "\n")
