"""Columns of a topic: the text of its setting `columns`, and how they may change.

    columns   = column {", " column}
    column    = [id] name type ["required" | "key"] ["default" JSON] | id name type "dropped"

For example `1 page string required, 2 user int64, 3 country string default "DE"`. A column keeps its id: a
batch names its columns by id, so that a column may be renamed, and the id of a dropped one is not used again.

A column without `required` may be null. The columns with `key` are those by which rows are distributed over partitions
(`headrace.wire.typed.row_keys`); they are required, and fixed when the topic is created. A batch has the columns that
its producer knew; a reader gets a column that the batch lacks as its default, or as null.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.column_types import INTEGERS, ColumnType, TypeReader, check_new, quoted, widens

MAX_COLUMNS = 1_000
MAX_NAME_BYTES = 255
MAX_TEXT = 65_536
"""Characters of the text of all columns, which every metadata response has."""
COMPATIBILITY_MODES = ("backward", "forward", "full", "none")
"""backward: new readers read old records; forward: old readers read new ones; full: both; none: neither."""
_WORDS = ("required", "key", "default", "dropped")


@dataclass(frozen=True, slots=True)
class TopicColumn:
    """Column of a topic."""

    id: int
    """From 1; 0 before a coordinator has given one."""
    name: str
    type: ColumnType
    is_required: bool = False
    """Whether no value is null."""
    default: str = ""
    """JSON text of the value for records without the column; empty for null."""
    is_dropped: bool = False
    is_key: bool = False
    """Whether it is a part of the records' keys."""

    def __str__(self) -> str:
        number = f"{self.id} " if self.id else ""
        words = " key" if self.is_key else " required" * self.is_required
        words += f" default {self.default}" if self.default else ""
        return f"{number}{quoted(self.name)} {self.type}{' dropped' if self.is_dropped else words}"

    @property
    def default_value(self) -> Any:
        """The default as a Python value; `None` without one."""
        return json.loads(self.default) if self.default else None

    @property
    def can_be_absent(self) -> bool:
        """Whether a record without the column can be read."""
        return not self.is_required or bool(self.default)


@dataclass(frozen=True)
class TopicColumns:
    """All columns of a topic, the dropped ones included, in the order of the text."""

    columns: tuple[TopicColumn, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.columns))

    @cached_property
    def current(self) -> tuple[TopicColumn, ...]:
        """The columns that are not dropped."""
        return tuple(column for column in self.columns if not column.is_dropped)

    @cached_property
    def keys(self) -> tuple[TopicColumn, ...]:
        """The columns that are the records' key; empty if rows have no key."""
        return tuple(column for column in self.current if column.is_key)

    @cached_property
    def batch_text(self) -> str:
        """Text of the columns in a batch: without the dropped ones and without defaults."""
        return ", ".join(str(replace(column, default="")) for column in self.current)

    @cached_property
    def places(self) -> dict[int, int]:
        """Place of each column in `columns`, by its id."""
        return {column.id: place for place, column in enumerate(self.columns)}

    @cached_property
    def _named(self) -> dict[str, TopicColumn]:
        return {column.name: column for column in self.current}

    def by_name(self, name: str) -> TopicColumn:
        """Return a column.

        Raises:
            InvalidConfigError: If there is none of this name; the message has all names.
        """
        found = self._named.get(name)
        if found is not None:
            return found
        names = ", ".join(column.name for column in self.current)
        raise InvalidConfigError(f"there is no column {name!r}", action=f"Use one of: {names}.")

    def by_id(self, number: int) -> TopicColumn | None:
        """Return the column with an id, dropped or not."""
        place = self.places.get(number)
        return None if place is None else self.columns[place]


@lru_cache(256)
def parse_columns(text: str) -> TopicColumns:
    """Parse the text of columns; ids may be missing.

    Raises:
        InvalidConfigError: If the text is invalid; the message has the place and the rule.
    """
    if len(text) > MAX_TEXT:
        raise InvalidConfigError(f"columns: the text has {len(text)} characters, more than {MAX_TEXT}")
    columns = tuple(_column(part) for part in _divided(text))
    names = [column.name for column in columns if not column.is_dropped]
    if not names:
        raise InvalidConfigError("columns: there is no column", action='Write them like "page string, user int64".')
    if len(columns) > MAX_COLUMNS:
        raise InvalidConfigError(f"columns: there are {len(columns)} columns, more than {MAX_COLUMNS}")
    for what, found in (("name", names), ("id", [column.id for column in columns if column.id])):
        twice = next((each for place, each in enumerate(found) if each in found[:place]), None)
        if twice is not None:
            raise InvalidConfigError(f"columns: two columns have the {what} {twice}")
    return TopicColumns(columns)


def _divided(text: str) -> Iterable[str]:
    """Divide a text at the commas that are in no brackets and in no quotes."""
    depth, start, is_quoted, is_escaped = 0, 0, False, False
    for place, sign in enumerate(text):
        if is_quoted:
            is_quoted = is_escaped or sign != '"'
            is_escaped = sign == "\\" and not is_escaped
        elif sign == '"':
            is_quoted = True
        elif sign in "<([":
            depth += 1
        elif sign in ">)]":
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _column(text: str) -> TopicColumn:
    reader = TypeReader(text.strip())
    number = reader.take("number")
    if number is not None and not 1 <= int(number) < 2**31:
        raise InvalidConfigError(f"columns: the id {number} is outside 1 .. 2^31 - 1")
    name = reader.column_name()
    if name.startswith("_") or len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidConfigError(
            f"columns: the name {name[:80]!r} begins with an underscore or is longer than {MAX_NAME_BYTES} bytes",
            action="Names with an underscore, such as _offset, are those that headrace gives.",
        )
    column = TopicColumn(int(number or 0), name, reader.type())
    while (word := reader.take("word")) is not None:
        if word == "required":
            column = replace(column, is_required=True)
        elif word == "key":
            column = replace(column, is_key=True, is_required=True)
        elif word == "dropped" and column.id:
            column = replace(column, is_dropped=True)
        elif word == "default":
            return replace(column, default=_default(column, reader.rest()))
        else:
            raise reader.error(f"columns: {word} is not one of {', '.join(_WORDS)} (dropped needs an id)")
    reader.end()
    return column


def _default(column: TopicColumn, text: str) -> str:
    """Return the JSON text of a default value.

    Raises:
        InvalidConfigError: If it is no JSON value of the column's type.
    """
    expected: tuple[type, ...] = {"bool": (bool,), "string": (str,)}.get(column.type.name, ())
    if column.type.name in INTEGERS:
        expected = (int,)
    elif column.type.name in {"float", "double"}:
        expected = (int, float)
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, expected) or (isinstance(value, bool) and column.type.name != "bool"):
        raise InvalidConfigError(
            f"columns: the default of {column.name}, {text.strip()[:80]!r}, is no {column.type}",
            action="Defaults are JSON values of numbers, strings and bools; other columns have null.",
        )
    if column.type.name in INTEGERS:
        bits, is_unsigned = int(column.type.name.lstrip("uint")), column.type.name.startswith("u")
        number: int = json.loads(text)
        least, most = (0, 2**bits) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if not least <= number < most:
            raise InvalidConfigError(f"columns: the default of {column.name}, {number}, is outside {column.type}")
    return json.dumps(value, ensure_ascii=False)


def with_ids(wanted: TopicColumns, before: TopicColumns | None) -> TopicColumns:
    """Return `wanted` with ids: those of the columns of the same names, or the next ones; with what was dropped.

    A column with an id of its own in `wanted` is the one of this id, renamed if the name differs.

    Raises:
        InvalidConfigError: For an id that no column had, or that of a dropped one.
    """
    known = {} if before is None else {column.id: column for column in before.columns}
    by_name = {} if before is None else {column.name: column.id for column in before.current}
    given = {column.id for column in wanted.columns if column.id}
    following = max([0, *known, *(given if before is None else ())]) + 1
    found: list[TopicColumn] = []
    for column in wanted.current:
        number = column.id or by_name.get(column.name, 0)
        if not column.id and number in given:
            number = 0  # Its name was given to another id.
        if not number:
            number, following = following, following + 1
        elif before is not None and (number not in known or known[number].is_dropped):
            raise InvalidConfigError(
                f"columns: the id {number} of {column.name} is not that of a column",
                action="Leave the id out: a new column is given the next one.",
            )
        found.append(replace(column, id=number))
    kept = {column.id for column in found}
    gone = [replace(column, is_dropped=True) for number, column in known.items() if number not in kept]
    gone += [column for column in wanted.columns if column.is_dropped and column.id not in known]
    return TopicColumns((*found, *gone))


def evolved(before: str, wanted: str, mode: str) -> str:
    """Return the text of columns after a change: with ids, and checked against the mode.

    Args:
        before: text of the present columns; empty for a new topic.
        wanted: the new text; columns without ids are found by name.
        mode: one of `COMPATIBILITY_MODES`.

    Raises:
        InvalidConfigError: If the change breaks the mode; the message has the column and the rule.
    """
    old = parse_columns(before) if before else None
    new = with_ids(parse_columns(wanted), old)
    known = set() if old is None else {column.type for column in old.columns}
    for column in new.current:
        if column.type not in known:  # A topic that has such a column can still be altered.
            _check_new(column)
    if old is not None:
        new = _checked(old, new, mode)
    return str(new)


def _check_new(column: TopicColumn) -> None:
    try:
        check_new(column.type)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"columns: {column.name}: {error.message}", action=error.action) from None


def _checked(old: TopicColumns, new: TopicColumns, mode: str) -> TopicColumns:
    if {each.id: each.type for each in old.keys} != {each.id: each.type for each in new.keys}:
        raise InvalidConfigError(
            f"columns: the key is {', '.join(each.name for each in old.keys) or 'none'}, which cannot change",
            action="Create another topic: the partitions of the records depend on their keys.",
        )
    columns: list[TopicColumn] = []
    following = max(column.id for column in new.columns) + 1
    for column in new.columns:
        was = old.by_id(column.id)
        if was is None:
            if mode in {"backward", "full"} and not column.can_be_absent:
                raise _breaks(mode, f"{column.name} is new and required", "Give it a default, or let it be null.")
        elif column.is_dropped:
            if not was.is_dropped and mode in {"forward", "full"} and not was.can_be_absent:
                raise _breaks(mode, f"{column.name} is dropped and required", "Keep it, or give it a default first.")
        elif mode == "none" and was.type != column.type:
            columns.append(replace(was, is_dropped=True))
            columns.append(replace(column, id=following))
            following += 1
            continue
        else:
            _check_change(was, column, mode)
        columns.append(column)
    return TopicColumns(tuple(sorted(columns, key=lambda column: column.is_dropped)))


def _check_change(was: TopicColumn, column: TopicColumn, mode: str) -> None:
    change = f"{column.name} was {was.type} and is {column.type}"
    advice = "Add a column of another name, or set compatibility=none."
    if mode in {"backward", "full"} and not widens(was.type, column.type):
        raise _breaks(mode, change, advice)
    if mode in {"forward", "full"} and not widens(column.type, was.type):
        raise _breaks(mode, change, advice)
    if mode in {"backward", "full"} and column.is_required and not was.is_required:
        raise _breaks(mode, f"{column.name} may be null and becomes required", "Let it be null, or add another column.")
    if mode in {"backward", "full"} and was.can_be_absent and not column.can_be_absent:
        raise _breaks(
            mode, f"{column.name} is required and loses its default", "Keep it for records without the column."
        )
    if mode in {"forward", "full"} and was.is_required and not column.is_required:
        raise _breaks(mode, f"{column.name} is required and becomes nullable", "Keep it required.")


def _breaks(mode: str, what: str, action: str) -> InvalidConfigError:
    whose = {"backward": "new readers could not read old records", "forward": "old readers could not read new records"}
    reason = whose.get(mode, "old or new readers could not read all records")
    return InvalidConfigError(f"columns: {what}: with compatibility={mode} {reason}", action=action)


def writable(batch_text: str, columns: TopicColumns) -> str:
    """Return why a batch with the columns of `batch_text` may not be appended to a topic; empty if it may.

    A producer may know older columns than the topic has: a column that is dropped since, one of a narrower type, or
    fewer columns, as long as readers can do without them.
    """
    try:
        written = parse_columns(batch_text)
    except InvalidConfigError as error:
        return error.message
    for column in written.columns:
        now = columns.by_id(column.id)
        if now is None:
            return f"the topic has no column {column.id} ({column.name})"
        if not now.is_dropped and not widens(column.type, now.type):
            return f"column {column.name} is {column.type}, and {now.type} in the topic"
        if now.is_required and not now.is_dropped and not column.is_required:
            return f"column {column.name} may be null in the batch, and is required in the topic"
    for now in columns.current:
        if not now.can_be_absent and written.by_id(now.id) is None:
            return f"the required column {now.name} is missing"
    return ""
