"""Types of a topic's columns, as text: `int64`, `timestamp[us, UTC]`, `list<struct<name: string>>`.

    type      = name | name "[" arguments "]" | "decimal(" precision ", " scale ")"
              | "list<" type ">" | "map<" type ", " type ">" | "struct<" field {", " field} ">"
    field     = column_name ": " type

| type | values |
| --- | --- |
| `bool` | true, false |
| `int8`, `int16`, `int32`, `int64`, `uint8`, `uint16`, `uint32`, `uint64` | whole numbers |
| `float`, `double` | IEEE 754 numbers of 32 and 64 bits |
| `decimal(p, s)` | numbers of `p` digits, 1 to 76, `s` of them after the point |
| `string`, `binary`, `binary[n]` | UTF-8 text, bytes, `n` bytes |
| `date` | days since 1970 |
| `time[u]`, `duration[u]`, `timestamp[u]`, `timestamp[u, zone]` | in the unit `u`: `s`, `ms`, `us` or `ns` |
| `list<t>`, `map<k, v>`, `struct<name: t>` | nested at most 16 deep; the keys of a map are not nested |

A time is within a day. A zone is UTC, an offset or a name of the database of time zones; in quotes if it is no word:
`timestamp[us, "+01:00"]`.

Every type has one layout of Arrow's columnar format, in its 32-bit variant: `headrace.wire.typed.arrow_columns`.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from headrace.wire.errors import InvalidConfigError

MAX_NESTING = 16
MAX_FIXED_BYTES = 1 << 20
UNITS = ("s", "ms", "us", "ns")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIMPLE = ("bool", *INTEGERS, "float", "double", "string", "binary", "date")
TIMED = ("time", "duration", "timestamp")
ALIASES = {
    "boolean": "bool",
    "int": "int64",
    "long": "int64",
    "float32": "float",
    "float64": "double",
    "str": "string",
    "text": "string",
    "bytes": "binary",
    "date32": "date",
}
"""Other names for a type that are read, but not written."""
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_+/]*")
_OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):([0-5]\d)")
_TOKEN = re.compile(
    rf'\s*(?:(?P<word>{_WORD.pattern})|(?P<number>-?\d+)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>[<>\[\](),:]))'
)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Type of a column or of a part of it."""

    name: str
    numbers: tuple[int, ...] = ()
    """Bytes of `binary[n]`; precision and scale of a decimal."""
    unit: str = ""
    zone: str = ""
    children: "tuple[tuple[str, ColumnType], ...]" = ()
    """Fields of a struct by name; the parts of a list or a map, without names."""

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.numbers[0]}, {self.numbers[1]})"
        if self.name == "struct":
            return f"struct<{', '.join(f'{quoted(name)}: {child}' for name, child in self.children)}>"
        if self.children:
            return f"{self.name}<{', '.join(str(child) for _, child in self.children)}>"
        if self.unit:
            zone = self.zone if _WORD.fullmatch(self.zone) else json.dumps(self.zone)
            return f"{self.name}[{self.unit}, {zone}]" if self.zone else f"{self.name}[{self.unit}]"
        return f"{self.name}[{self.numbers[0]}]" if self.numbers else self.name


@lru_cache(1024)
def parse_type(text: str) -> ColumnType:
    """Parse the text of a type.

    Raises:
        InvalidConfigError: If it is none; the message has the place.
    """
    reader = TypeReader(text)
    found = reader.type()
    reader.end()
    return found


def zone_of(name: str) -> tzinfo:
    """Return the time zone of timestamps: UTC, an offset such as `+01:00`, or one of the database of time zones.

    Raises:
        InvalidConfigError: If there is none of this name here.
    """
    if name.upper() in {"UTC", "Z", "ETC/UTC"}:
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        return timezone((-1 if sign == "-" else 1) * timedelta(hours=int(hours), minutes=int(minutes)))
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidConfigError(
            f"there is no time zone {name!r}",
            action="Use UTC, an offset such as +01:00, or a name such as Europe/Paris. If it is right, install tzdata.",
        ) from None


def check_new(kind: ColumnType) -> None:
    """Check what a new column cannot have at any depth, which old ones may.

    Raises:
        InvalidConfigError: For a time zone that does not exist, and for a map whose keys are lists, maps or structs.
    """
    if kind.zone:
        zone_of(kind.zone)
    if kind.name == "map" and (key := kind.children[0][1]).children:
        raise InvalidConfigError(
            f"keys of a map cannot be of the type {key}: Python has no dict of them",
            action=f"Use list<struct<key: {key}, value: {kind.children[1][1]}>>.",
        )
    for _, child in kind.children:
        check_new(child)


def quoted(name: str) -> str:
    """Return a name as it is written: in quotes if it is no plain identifier."""
    return name if IDENTIFIER.fullmatch(name) else json.dumps(name, ensure_ascii=False)


class TypeReader:
    """Reads types, names and marks from a text in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def error(self, problem: str) -> InvalidConfigError:
        """Return the error of what is next."""
        rest = self._text[self._position : self._position + 20].strip() or "its end"
        return InvalidConfigError(
            f"{problem} at {rest!r} in {self._text[:200]!r}",
            action="Write a type like int64, string, timestamp[ms, UTC], decimal(10, 2) or list<string>.",
        )

    def take(self, kind: str) -> str | None:
        """Take the next token if it is of a kind: `word`, `number`, `quoted` or a mark."""
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            return None
        found = match.group("mark") if kind in "<>[](),:" else match.group(kind)
        if found is None or (kind in "<>[](),:" and found != kind):
            return None
        self._position = match.end()
        return found

    def expect(self, kind: str) -> str:
        """Take the next token, which must be of this kind."""
        found = self.take(kind)
        if found is None:
            raise self.error(f"a {kind} is missing" if kind.isalpha() else f"{kind!r} is missing")
        return found

    def rest(self) -> str:
        """Return what was not read."""
        return self._text[self._position :]

    def end(self) -> None:
        """Check that nothing is left."""
        if self.rest().strip():
            raise self.error("nothing more is expected")

    def column_name(self) -> str:
        """Read the name of a column or of a field."""
        text = self.take("quoted")
        if text is None:
            return self.expect("word")
        return self._unquoted(text)

    def _unquoted(self, text: str) -> str:
        try:
            name = json.loads(text)
        except ValueError:
            raise self.error("a name in quotes is no JSON string") from None
        if not name:
            raise self.error("a name is empty")
        return str(name)

    def type(self, depth: int = 0) -> ColumnType:
        """Read a type."""
        if depth > MAX_NESTING:
            raise self.error(f"types are nested more than {MAX_NESTING} deep")
        word = self.expect("word")
        name = ALIASES.get(word, word)
        if name == "binary" and self.take("["):
            size = self._number(1, MAX_FIXED_BYTES)
            self.expect("]")
            return ColumnType("binary", (size,))
        if name in SIMPLE:
            return ColumnType(name)
        if name in TIMED:
            return self._timed(name)
        if name == "decimal":
            self.expect("(")
            precision = self._number(1, 76)
            scale = self._number(0, precision) if self.take(",") else 0
            self.expect(")")
            return ColumnType(name, (precision, scale))
        if name in {"list", "map", "struct"}:
            self.expect("<")
            found = ColumnType(name, children=self._children(name, depth + 1))
            self.expect(">")
            return found
        raise self.error(f"{word} is no type")

    def _timed(self, name: str) -> ColumnType:
        self.expect("[")
        unit = self.expect("word")
        if unit not in UNITS:
            raise self.error(f"{unit} is not one of the units {', '.join(UNITS)}")
        zone = ""
        if name == "timestamp" and self.take(","):
            text = self.take("quoted")
            zone = self.expect("word") if text is None else self._unquoted(text)
        self.expect("]")
        return ColumnType(name, unit=unit, zone=zone)

    def _children(self, name: str, depth: int) -> tuple[tuple[str, ColumnType], ...]:
        if name == "list":
            return (("", self.type(depth)),)
        if name == "map":
            key = self.type(depth)
            self.expect(",")
            return ("", key), ("", self.type(depth))
        fields: list[tuple[str, ColumnType]] = []
        while not fields or self.take(","):
            field = self.column_name()
            if any(field == other for other, _ in fields):
                raise self.error(f"two fields of a struct are named {field}")
            self.expect(":")
            fields.append((field, self.type(depth)))
        return tuple(fields)

    def _number(self, minimum: int, maximum: int) -> int:
        number = int(self.expect("number"))
        if not minimum <= number <= maximum:
            raise self.error(f"{number} is outside {minimum} .. {maximum}")
        return number


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Return whether every value of `old` is one of `new`, without a loss: the same type, or a wider one."""
    if old == new:
        return True
    if old.name in INTEGERS and new.name in INTEGERS:
        old_bits, new_bits = int(old.name.lstrip("uint")), int(new.name.lstrip("uint"))
        is_unsigned = old.name.startswith("u")
        if new.name.startswith("u"):
            return is_unsigned and old_bits < new_bits
        return old_bits < new_bits
    if old.name in INTEGERS and new.name == "double":
        return int(old.name.lstrip("uint")) <= 32
    if (old.name, new.name) in {("float", "double"), ("string", "binary")} and not new.numbers:
        return True
    if old.name == new.name == "decimal":
        return old.numbers[1] == new.numbers[1] and old.numbers[0] <= new.numbers[0]
    return False
