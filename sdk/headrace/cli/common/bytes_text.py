"""Conversion of keys, values and header values, which are bytes, to and from JSON.

Bytes that are valid UTF-8 are a string, others are `{"base64": "..."}`, and an absent value is null.
"""

import base64
import binascii
from typing import TypeAlias

JsonBytes: TypeAlias = str | dict[str, str] | None


def to_json(data: bytes | None) -> JsonBytes:
    """Return the JSON form of a key or value."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def from_json(value: object, what: str) -> bytes | None:
    """Return the bytes of a JSON form.

    Args:
        value: result of `json.loads`.
        what: name of the field in the error, for example `key`.

    Raises:
        ValueError: If it is neither a string, nor null, nor `{"base64": ...}`.
    """
    match value:
        case None:
            return None
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{what} holds half a surrogate pair; send such bytes as base64") from None
        case {"base64": str(encoded), **rest} if not rest:
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{what} is not valid base64 ({error})") from None
        case _:
            raise ValueError(f'{what} must be a string, null or {{"base64": "..."}}, not {_kind(value)}')


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
