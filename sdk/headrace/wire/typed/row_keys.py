"""Keys of rows, made of the stored values of their key columns: a value has one key, in whatever form it was sent.

The key of a single text or binary column is the value itself. Any other key is a compact JSON array of the values:
numbers, bools, null and text as JSON has them, zero without a sign, bytes in hexadecimal digits, and dates, times,
durations and decimals as Python writes them, but as whole numbers where it has no type (see `values_of`); a timestamp
with a zone in UTC.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.wire.typed.blocks import read_block, values_of
from headrace.wire.typed.column_types import INTEGERS, ColumnType
from headrace.wire.typed.payload import ColumnBlock

_EXACT: dict[str, type] = {
    **dict.fromkeys(INTEGERS, int), "double": float, "bool": bool, "string": str, "binary": bytes,
}  # fmt: skip
"""By type: the class of the values that are stored as they are."""


def is_exact(kind: ColumnType, value: Any) -> bool:
    """Return whether a value that fits a type is equal to the stored one, so that no block is needed for its key."""
    return type(value) is _EXACT.get(kind.name)


def keys_of_blocks(blocks: Sequence[ColumnBlock], kinds: Sequence[ColumnType], count: int) -> list[bytes]:
    """Return the keys of `count` rows by the blocks of their key columns."""
    columns = [
        values_of(read_block(b"".join(block.parts), _in_utc(kind), count))
        for block, kind in zip(blocks, kinds, strict=True)
    ]
    return [key_of(values) for values in zip(*columns, strict=True)]


def _in_utc(kind: ColumnType) -> ColumnType:
    """Return the type with UTC as every zone: a key depends on no database of zones."""
    children = tuple((name, _in_utc(child)) for name, child in kind.children)
    return replace(kind, zone="UTC" if kind.zone else "", children=children)


def key_of(values: Sequence[Any]) -> bytes:
    """Return the key of a row by the stored values of its key columns."""
    if len(values) == 1 and isinstance(values[0], str | bytes):
        return values[0].encode() if isinstance(values[0], str) else values[0]
    parts = [_json_form(value) for value in values]
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False, default=_key_part).encode()


def _key_part(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _json_form(value: Any) -> Any:
    """Return a value with one sign of zero, and text as the keys of maps, which JSON requires, at any depth."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {_key_part(_json_form(key)): _json_form(each) for key, each in value.items()}
    return [_json_form(each) for each in value] if isinstance(value, list | tuple) else value
