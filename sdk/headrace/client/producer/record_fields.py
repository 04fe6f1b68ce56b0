"""Checks of a record's headers and timestamp at the call: its batch has records of other callers. Pure."""

from collections.abc import Iterable
from typing import Any

from headrace.client.base.errors import SerializationError
from headrace.wire.batch import MAX_RECORD_HEADERS, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS


def checked_headers(headers: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return a copy of the headers of one record.

    Raises:
        SerializationError: If they are not pairs of str and bytes, or too many.
    """
    try:
        pairs = [(name, data if type(data) is bytes else _bytes_of(data)) for name, data in headers]
        for name, _ in pairs:
            if not str.isascii(name):
                name.encode()  # Fails for half of a surrogate pair.
    except (AttributeError, TypeError, ValueError) as error:
        raise SerializationError(
            f"a header is not a pair of str and bytes: {error}",
            action='Pass (name, bytes) pairs; use b"" for a header without a value.',
        ) from error
    if len(pairs) > MAX_RECORD_HEADERS:
        raise SerializationError(f"a record has {len(pairs)} headers, above the limit of {MAX_RECORD_HEADERS}")
    return pairs


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"its value is {type(data).__name__}")


def checked_timestamp(timestamp_ms: Any) -> int:
    """Return the timestamp of one record.

    Raises:
        SerializationError: If it is not a number of milliseconds, or not within the years 1 to 9999.
    """
    try:
        if isinstance(timestamp_ms, str | bytes):
            raise TypeError(f"it is {type(timestamp_ms).__name__}")
        found = int(timestamp_ms)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(
            f"the timestamp {timestamp_ms!r} is not a number of milliseconds: {error}",
            action="Pass the milliseconds since 1970, for example int(moment.timestamp() * 1000).",
        ) from error
    if not MIN_TIMESTAMP_MS <= found <= MAX_TIMESTAMP_MS:
        raise SerializationError(
            f"the timestamp {found} ms is not within {MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}, the years 1 to 9999"
        )
    return found


def checked_timestamps(timestamps_ms: Iterable[Any]) -> list[int | None]:
    """Return the timestamps of some records, `None` for a record without its own; raise as `checked_timestamp`."""
    listed = [*timestamps_ms]
    given = [at for at in listed if at is not None]
    if given and not (
        set(map(type, given)) == {int} and MIN_TIMESTAMP_MS <= min(given) <= max(given) <= MAX_TIMESTAMP_MS
    ):
        return [None if at is None else checked_timestamp(at) for at in listed]
    return listed  # Without a step of its own for each.
