"""Topic and partition of the rows of an Arrow batch. Pure except for pyarrow; at most one Python step per row.

Rows go to the partition in the column `partition`; else by their key, as in the SDK's producers; else to a partition
that changes from batch to batch. The choice depends only on the rows and on the writing task, so a retry makes the same
one.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.base.errors import SerializationError
from headrace.wire.partitioning import partition_for_key


class Share(NamedTuple):
    """Rows for one partition, in order."""

    topic: str
    partition: int
    rows: Any
    """A `pyarrow.RecordBatch`."""


def by_topic(rows: Any, topic: str) -> Iterator[tuple[str, Any]]:
    """Yield each topic's rows; `topic` is that of all, or empty if the column has it.

    Raises:
        SerializationError: If a row has no topic.
    """
    if topic:
        yield topic, rows
        return
    column = rows.column("topic")
    if column.null_count:
        raise SerializationError("a row's topic is null", action="Give each row one, or use the option topic.")
    names = pc.unique(column)
    for name in names.to_pylist():
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(column, name))


def by_partition(topic: str, rows: Any, count: int, keyless: int) -> Iterator[Share]:
    """Yield each partition's rows, partitions ascending.

    Args:
        topic: topic of all rows.
        rows: a `pyarrow.RecordBatch`.
        count: number of partitions of the topic.
        keyless: partition of rows with neither partition nor key.

    Raises:
        SerializationError: If a row's partition does not exist.
    """
    chosen = partitions_of(rows, count, keyless)
    if chosen is None:
        yield Share(topic, keyless, rows)
        return
    bad = chosen[(chosen < 0) | (chosen >= count)]
    if len(bad):
        raise SerializationError(f"a row's partition is {int(bad[0])}, and {topic} has the partitions 0 to {count - 1}")
    order = np.argsort(chosen, kind="stable")
    numbers, starts = np.unique(chosen[order], return_index=True)
    if len(numbers) == 1:
        yield Share(topic, int(numbers[0]), rows)
        return
    for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        yield Share(topic, number, rows.take(pa.array(places)))


def partitions_of(rows: Any, count: int, keyless: int) -> npt.NDArray[np.int64] | None:
    """Return each row's partition; `None` if no row has a partition or a key."""
    names = rows.schema.names
    keys = rows.column("key") if "key" in names else None
    if keys is not None and keys.null_count == len(keys):
        keys = None
    given = rows.column("partition") if "partition" in names else None
    if given is not None and given.null_count == 0:
        return _int64s(given)
    if keys is None and (given is None or given.null_count == len(given)):
        return None
    hashed = np.full(rows.num_rows, keyless, np.int64) if keys is None else _by_key(keys, count, keyless)
    if given is None:
        return hashed
    told = np.asarray(given.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return np.where(told, _int64s(given.fill_null(0)), hashed)


def _by_key(keys: Any, count: int, keyless: int) -> npt.NDArray[np.int64]:
    entries = keys.cast(pa.binary()).to_pylist()
    choose: Callable[[bytes | None], int] = lambda key: keyless if key is None else partition_for_key(key, count)  # noqa: E731
    return np.fromiter(map(choose, entries), np.int64, len(entries))


def _int64s(numbers: Any) -> npt.NDArray[np.int64]:
    return np.asarray(numbers.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
