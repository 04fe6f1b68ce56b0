"""Files of offsets that `group reset` reads and writes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.common.arguments import counted
from headrace.cli.common.session import UsageProblem, tell, write_out
from headrace.cli.records.offset_plan import MAX_FILE_BYTES, offsets_file
from headrace.wire.ids import TopicPartition


def read_offsets_file(path: Path) -> str:
    """Return the text of a file of offsets, `-` for standard input.

    Raises:
        UsageProblem: If it cannot be read, is too large, or is not text.
    """
    try:
        if path == Path("-"):
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageProblem(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is not UTF-8 text") from None


def write_offsets_file(path: Path | None, group: str, offsets: Sequence[tuple[TopicPartition, int | None]]) -> None:
    """Write a file of offsets, `-` for standard output.

    Raises:
        UsageProblem: If it cannot be written.
    """
    text = offsets_file(group, offsets)
    if path is None or path == Path("-"):
        write_out(text)
        return
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror}") from None
    tell(f"wrote {counted(sum(offset is not None for _, offset in offsets), 'offset')} to {path}")
