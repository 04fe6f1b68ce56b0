"""Output formats of `headrace consume`: one function per format, record in, bytes out. Pure."""

import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, assert_never

from headrace.cli.common.rendering import json_document, yaml_document
from headrace.cli.records.record_format import FormattableRecord, compile_format
from headrace.cli.records.record_json import to_document
from headrace.display.visible_text import to_line, visible

Writer = Callable[[FormattableRecord], bytes]


class RecordOutput(enum.StrEnum):
    """Output format of records."""

    RAW = "raw"
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def record_writer(output: RecordOutput, format_text: str | None) -> tuple[bytes, Writer]:
    """Return the heading and the function that formats one record.

    Raises:
        FormatSyntaxError: If `format_text` is not a valid format.
    """
    if format_text is not None:
        return b"", _of_bytes(compile_format(format_text))
    match output:
        case RecordOutput.RAW:
            return b"", _of_bytes(lambda record: (record.value or b"") + b"\n")
        case RecordOutput.JSON:
            return b"", lambda record: _encoded(json_document(to_document(record)) + "\n")
        case RecordOutput.YAML:
            return b"", lambda record: _encoded("---\n" + yaml_document(to_document(record)))
        case RecordOutput.TABLE | RecordOutput.WIDE:
            wide = output is RecordOutput.WIDE
            return _encoded(_heading(wide=wide)), _of_bytes(lambda record: _encoded(_row(record, wide=wide)))
        case _:
            assert_never(output)


def _of_bytes(writer: Writer) -> Writer:
    """Return a writer that is given a row of a typed topic as a JSON object."""

    def write(record: Any) -> bytes:
        if isinstance(record.value, dict):
            from headrace.wire.typed.json_values import json_row

            record = record._replace(value=json_row(record.value))
        return writer(record)

    return write


def timestamp_text(timestamp_ms: int) -> str:
    """Return milliseconds since 1970 as ISO 8601 in UTC, or as a number outside the calendar's range."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _heading(*, wide: bool) -> str:
    line = f"{'PARTITION':>9}  {'OFFSET':>12}  {'TIMESTAMP':<24}  {'KEY':<16}  "
    return line + (f"{'HEADERS':<24}  VALUE\n" if wide else "VALUE\n")


def _row(record: FormattableRecord, *, wide: bool) -> str:
    key = "-" if record.key is None else to_line(record.key)
    line = f"{record.partition:>9}  {record.offset:>12}  {timestamp_text(record.timestamp_ms):<24}  {key:<16}  "
    if wide:
        pairs = [f"{visible(name)}={to_line(value)}" for name, value in record.headers]
        line += f"{','.join(pairs) or '-':<24}  "
    return line + to_line(record.value) + "\n"
