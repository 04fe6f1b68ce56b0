"""Selections of a fetch: conversion of the message, and reading the selected parts of a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.v1 import broker_pb2
from headrace.wire.errors import CorruptBatchError, InvalidRequestError
from headrace.wire.typed.payload import NO_BOUNDS, TEXT
from headrace.wire.typed.selection import MAX_RANGES, ColumnRange, ColumnSelection, select
from headrace.wire.typed.topic_columns import MAX_COLUMNS

if TYPE_CHECKING:
    from headrace.log.slices import Slice

LOCATED_FACTOR = 16
"""A selection is searched in this many times the bytes that the caller takes."""


def selection_of(topic: broker_pb2.TopicFetch) -> ColumnSelection | None:
    """Return the selection of a part of a request; `None` for whole batches.

    Raises:
        InvalidRequestError: If it is invalid.
    """
    if not topic.HasField("selection"):
        return None
    found = topic.selection
    if len(found.column_ids) > MAX_COLUMNS or len(found.ranges) > MAX_RANGES:
        raise InvalidRequestError(
            f"a selection of {len(found.column_ids)} columns and {len(found.ranges)} ranges is over the limits, "
            f"{MAX_COLUMNS} and {MAX_RANGES}"
        )
    ranges = []
    for each in found.ranges:
        if not NO_BOUNDS < each.bounds <= TEXT or len(each.minimum) != 8 or len(each.maximum) != 8:
            raise InvalidRequestError(
                f"the range of column {each.column_id} has ends of {len(each.minimum)} and {len(each.maximum)} bytes "
                f"and of kind {each.bounds}",
                action=f"Give both 8 bytes of a kind from 1 to {TEXT}.",
            )
        ranges.append(ColumnRange(each.column_id, each.bounds, each.minimum, each.maximum))
    return ColumnSelection(frozenset(found.column_ids), found.rest, tuple(ranges))


def read_selected(found: Slice, selection: ColumnSelection, max_bytes: int) -> tuple[list[bytes], int, int]:
    """Read the selected parts of a slice, and close it; may block on the disk. See `select`.

    Raises:
        SliceCutError: If the log was truncated meanwhile.
        CorruptLogError, StorageOfflineError: If the slice cannot be read.
    """
    with found:
        try:
            parts = select(found.read_part, len(found), selection, max_bytes)
        except CorruptBatchError:
            parts = [found.read_part(0, len(found))], found.end_offset, -1
        if found.was_cut:
            raise found.too_short(0)
        return parts
