"""Serializers and deserializers: any callable, or the method of a `SerializerCodec`; three have names."""

import json
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from headrace.client.base.config_text import nearest
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.wire.errors import HeadraceError
from headrace.wire.ids import TopicPartition
from headrace.wire.typed.topic_columns import TopicColumns

if TYPE_CHECKING:
    from headrace.wire.decoded import BinaryColumn

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]


@runtime_checkable
class SerializerCodec(Protocol):
    """Object that a setting takes in place of either callable, such as `headrace.schemas.Avro`."""

    def serialize(self, value: Any, /) -> bytes:
        """Return the bytes of a value."""

    def deserialize(self, data: bytes, /) -> Any:
        """Return the value of bytes."""


class RowReader(Protocol):
    """Makes rows of the values of one table."""

    columns: TopicColumns

    def row(self, data: bytes, /) -> dict[str, Any]:
        """Return the row of a value."""


@runtime_checkable
class ArrayReader(RowReader, Protocol):
    """Makes Arrow arrays of values, without a row for each."""

    def arrays(self, values: "BinaryColumn", columns: TopicColumns, /) -> list[Any] | None:
        """Return an array for each of some columns, null where a value is null; `None` if rows must be made."""


@runtime_checkable
class TableCodec(Protocol):
    """Part `tables` of a codec whose values are rows, such as `headrace.schemas.Avro`."""

    def topic_columns(self) -> str:
        """Return the text of the columns of a typed topic."""

    def reader(self, values: Iterable[bytes | None], /) -> RowReader | None:
        """Return what makes rows of values; `None` if they are none."""


def table_codec(deserializer: Deserializer | None) -> TableCodec | None:
    """Return what makes rows of values that a deserializer reads; `None` if it reads other values."""
    found = getattr(getattr(deserializer, "__self__", None), "tables", None)
    return found if isinstance(found, TableCodec) else None


def to_json(value: Any) -> bytes:
    """Return a value as compact JSON.

    Raises:
        TypeError, ValueError: If it has no JSON form, such as NaN and the infinities; the message has their place.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        place = _place_without_json(value)
        if not place:
            raise
        raise ValueError(f"{place}, which JSON does not have; send null or a text") from error


def _place_without_json(value: Any) -> str:
    """Return the first place of NaN or an infinity, such as `$.prices[2] is nan`; empty if there is none."""
    waiting: list[tuple[str, Any]] = [("$", value)]
    seen: set[int] = set()
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, float) and not math.isfinite(found):
            return f"{place} is {found}"
        parts: list[tuple[str, Any]] = []
        if id(found) in seen:
            continue
        if isinstance(found, dict):
            for key, part in found.items():
                parts += [(f"a key of {place}", key), (f"{place}.{key}", part)]
        elif isinstance(found, list | tuple):
            parts = [(f"{place}[{index}]", part) for index, part in enumerate(found)]
        if parts:
            seen.add(id(found))
            waiting += reversed(parts)
    return ""


def _from_str(data: bytes) -> str:
    return data.decode()


SERIALIZERS: Final[dict[str, Serializer | None]] = {"bytes": None, "str": str.encode, "json": to_json}
"""Serializers by name; `None` accepts `bytes` unchanged."""

DESERIALIZERS: Final[dict[str, Deserializer | None]] = {"bytes": None, "str": _from_str, "json": json.loads}
"""Deserializers by name; `None` returns `bytes` unchanged."""


def resolve_serializer(setting: "str | Serializer | SerializerCodec | None", name: str) -> Serializer | None:
    """Return the callable for a setting: a name, a callable, a codec, or `None` for bytes.

    Raises:
        ConfigError: If the name is unknown.
    """
    found: Serializer | None = _resolve(getattr(setting, "serialize", setting), name, SERIALIZERS)
    return found


def resolve_deserializer(setting: "str | Deserializer | SerializerCodec | None", name: str) -> Deserializer | None:
    """Return the callable for a setting: a name, a callable, a codec, or `None` for bytes.

    Raises:
        ConfigError: If the name is unknown.
    """
    found: Deserializer | None = _resolve(getattr(setting, "deserialize", setting), name, DESERIALIZERS)
    return found


def _resolve(setting: Any, name: str, table: dict[str, Any]) -> Any:
    if setting is None or callable(setting):
        return setting
    if isinstance(setting, str) and setting in table:
        return table[setting]
    raise ConfigError(
        f"{name}={setting!r} is neither a callable nor one of {', '.join(table)}{nearest(setting, table)}"
    )


def serialize(serializer: Serializer | None, value: Any, what: str) -> bytes | None:
    """Convert a key or value into bytes; `None` stays `None`.

    Raises:
        SerializationError: If the serializer failed or did not return bytes.
    """
    if value is None:
        return None
    if serializer is not None:
        try:
            value = serializer(value)
        except Exception as error:
            raise SerializationError(f"the {what} could not be serialized: {_cause(error)}") from error
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SerializationError(
        f"the {what} is {type(value).__name__}, not bytes",
        action=f"Encode it, or set {what}_serializer to 'str', 'json' or a callable.",
    )


def _cause(error: Exception) -> str:
    """Return the text of an error; that of one of headrace has its next step."""
    return error.text if isinstance(error, HeadraceError) else repr(error)


def deserialize(deserializer: Deserializer, data: bytes | None, what: str, source: TopicPartition, offset: int) -> Any:
    """Convert bytes into an object; `None` stays `None`.

    Raises:
        SerializationError: If the deserializer failed; has the `partition` and `offset` of the record.
    """
    if data is None:
        return None
    try:
        return deserializer(data)
    except Exception as error:
        raise SerializationError(
            f"the {what} of {source} at offset {offset} could not be deserialized: {_cause(error)}",
            action=f"Seek the consumer to {offset} to read it again, or to {offset + 1} to continue; or start a new "
            "Reader there.",
            partition=source,
            offset=offset,
        ) from error
