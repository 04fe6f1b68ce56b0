"""Values of a decoded typed batch: as Arrow arrays, as rows, or as JSON, each block decoded on first use."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.wire.batch import BatchHeader
from headrace.wire.errors import CorruptBatchError, InvalidRequestError
from headrace.wire.typed.blocks import NESTED_BYTES, BlockArray, object_bytes, read_block, values_of
from headrace.wire.typed.column_types import INTEGERS, widens
from headrace.wire.typed.json_values import json_row
from headrace.wire.typed.payload import Directory, block_of
from headrace.wire.typed.topic_columns import TopicColumn


class TypedColumns:
    """Values of a typed batch. One thread at a time."""

    def __init__(
        self,
        header: BatchHeader,
        directory: Directory,
        stored: Sequence[memoryview | None],
        max_payload_bytes: int,
    ) -> None:
        """`stored` are the stored blocks, `None` for one that was not fetched."""
        self._kept: npt.NDArray[np.bool_] | None = None
        self._header = header
        self._directory = directory
        self._stored = stored
        self._max_bytes = max_payload_bytes
        self._arrays: dict[int, Any] = {}
        self._values: dict[int, list[Any]] = {}
        self._blocks: dict[int, bytes | memoryview] = {}
        self._json: tuple[npt.NDArray[np.int32], memoryview] | None = None

    @property
    def columns(self) -> tuple[TopicColumn, ...]:
        """Columns of the batch, as its producer knew them."""
        return self._directory.columns.columns

    @property
    def directory(self) -> Directory:
        """Directory of the batch."""
        return self._directory

    def filtered(self, kept: npt.NDArray[np.bool_]) -> "TypedColumns":
        """Return the rows that `kept` has; arrays are copied when they are asked for."""
        found = copy(self)  # What is decoded is shared: it has all rows.
        found._kept, found._json = kept, None
        return found

    def check(self) -> None:
        """Check all blocks that were fetched.

        Raises:
            CorruptBatchError: If one is wrong; the error has the batch's offsets, and its message the column.
            UnsupportedCodecError: If the codec's package is not installed.
        """
        for place, stored in enumerate(self._stored):
            if stored is not None:
                if _has_arrow():
                    self._array(place)
                else:
                    self._column_values(place)

    def array(self, column: TopicColumn) -> Any:
        """Return the Arrow array of a topic's column: found by id and cast to its type, or its default.

        Raises:
            CorruptBatchError: If the block is wrong, or its values do not fit.
            InvalidRequestError: If a value does not fit, which is one of a wider type that the topic has since, or had.
        """
        from headrace.wire.typed import arrow_columns

        place, kept = self._place(column), self._kept
        if place is None or (kept is not None and not kept.any()):
            return arrow_columns.filled(column, self._header.record_count if kept is None else int(kept.sum()))
        found, wanted = self._array(place), arrow_columns.arrow_type(column.type)
        if kept is not None:
            found = found.filter(kept)
        if found.type == wanted:
            return found
        try:
            return found.cast(wanted)
        except (ValueError, NotImplementedError) as error:
            if self.widest(column) is not column:
                raise InvalidRequestError(
                    f"column {column.name}: {error}: the batch has {self.columns[place].type}",
                    action="Read it with the topic's present columns.",
                ) from error
            raise self._error(self.columns[place], error) from error

    def widest(self, column: TopicColumn) -> TopicColumn:
        """Return a topic's column, with its type in this batch if that is wider."""
        place = self._place(column)
        if place is None or self.columns[place].type == column.type:
            return column
        written = self.columns[place].type
        return replace(column, type=written) if widens(column.type, written) else column

    def values(self, column: TopicColumn) -> list[Any]:
        """Return the values of a topic's column as Python objects, as `array`; see `values_of`."""
        place, kept = self._place(column), self._kept
        if place is None or (kept is not None and not kept.any()):
            return [column.default_value] * (self._header.record_count if kept is None else int(kept.sum()))
        written = self.columns[place].type
        convert = _CONVERSIONS.get((written.name, column.type.name)) if written != column.type else None
        values = self._column_values(place)
        if kept is not None:
            values = list(compress(values, kept.tolist()))
        return values if convert is None else [None if value is None else convert(value) for value in values]

    def _fetched(self) -> list[TopicColumn]:
        return [column for column, stored in zip(self.columns, self._stored, strict=True) if stored is not None]

    def _place(self, column: TopicColumn) -> int | None:
        return self._directory.columns.places.get(column.id)

    def _array(self, place: int) -> Any:
        from headrace.wire.typed.arrow_columns import array_of_block

        if place not in self._arrays:
            with self._naming(place) as column:
                self._arrays[place] = array_of_block(self._block(place), column.type, self._header.record_count)
        return self._arrays[place]

    def _column_values(self, place: int) -> list[Any]:
        if place not in self._values:
            array = self._read(place)
            with self._naming(place):
                self._values[place] = values_of(array)
        return self._values[place]

    def _read(self, place: int) -> BlockArray:
        with self._naming(place) as column:
            return read_block(self._block(place), column.type, self._header.record_count)

    def _block(self, place: int) -> bytes | memoryview:
        if place not in self._blocks:
            stored, entry = self._stored[place], self._directory.entries[place]
            assert stored is not None, "the column was not fetched"
            self._blocks[place] = block_of(stored, entry, self._header.codec, self._max_bytes)
        return self._blocks[place]

    @contextmanager
    def _naming(self, place: int) -> Iterator[TopicColumn]:
        column = self.columns[place]
        try:
            yield column
        except CorruptBatchError as error:
            raise self._error(column, error) from error

    def _error(self, column: TopicColumn, error: Exception) -> CorruptBatchError:
        message = error.message if isinstance(error, CorruptBatchError) else str(error)
        return CorruptBatchError(
            f"column {column.name}: {message}",
            base_offset=self._header.base_offset,
            next_offset=self._header.end_offset,
        )

    def rows(self, start: int, end: int, columns: Sequence[TopicColumn] | None = None) -> list[dict[str, Any]]:
        """Return the rows `start` to `end` as dicts of some columns; by default those of the batch that are here."""
        wanted = self._fetched() if columns is None else columns
        names = [column.name for column in wanted]
        values = [self.values(column)[start:end] for column in wanted]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def object_bytes(self) -> int:
        """Return about the most memory that `json_column` takes; see `blocks.object_bytes`.

        Raises:
            CorruptBatchError: If a block is wrong.
        """
        names = sum(len(column.name) for column in self.columns)
        size = self._header.record_count * (NESTED_BYTES + names)
        for place, stored in enumerate(self._stored):
            if stored is not None:
                size += object_bytes(self._read(place))
        return size

    def json_column(self) -> tuple[npt.NDArray[np.int32], memoryview]:
        """Return the rows as JSON objects, see `json_row`: their offsets int32[n + 1] and their bytes."""
        if self._json is None:
            rows = [json_row(row) for row in self.rows(0, self._header.record_count)]
            offsets = np.zeros(len(rows) + 1, np.int32)
            np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), out=offsets[1:])
            self._json = offsets, memoryview(b"".join(rows))
        return self._json


_CONVERSIONS: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{(name, "double"): float for name in INTEGERS},
    ("string", "binary"): str.encode,
}
"""By old and new type: those whose Python objects differ."""


@cache
def _has_arrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None
