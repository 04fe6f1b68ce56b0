"""Arrow tables over the columns of record batches. Imports pyarrow, so it is imported on first use only."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client.base.records import DecodedBatch
from headrace.wire.arrow_constants import HEADERS, TIMESTAMP, zeros

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""Columns of `RecordBatch.to_arrow` and `Reader.to_arrow`."""


def table_of(decoded_batches: Sequence[DecodedBatch]) -> Any:
    """Return a table with one Arrow chunk per decoded batch; values, keys and headers are not copied."""
    return pa.Table.from_batches([batch_of(decoded) for decoded in decoded_batches], SCHEMA)


def batch_of(decoded: DecodedBatch) -> Any:
    """Return one `pyarrow.RecordBatch`."""
    columns, start, count = decoded.columns, decoded.start, decoded.end - decoded.start
    first_name = pa.Array.from_buffers(pa.int32(), count, [None, zeros(4 * count)])
    topic = pa.DictionaryArray.from_arrays(first_name, _names(decoded.source.topic), safe=False)
    whole = count == columns.record_count
    arrays = [
        columns.to_arrow_timestamps(),
        columns.to_arrow_keys(),
        columns.to_arrow_values(),
        columns.to_arrow_headers(),
    ]
    times, keys, values, headers = arrays if whole else [array.slice(start, count) for array in arrays]
    partition = _numbers(np.full(count, decoded.source.partition, np.int32), pa.int32())
    offsets = _numbers(columns.offset_array(start, decoded.end), pa.int64())
    return pa.RecordBatch.from_arrays([topic, partition, offsets, times, keys, values, headers], schema=SCHEMA)


def _numbers(numbers: npt.NDArray[Any], arrow_type: Any) -> Any:
    """Return an array over the same memory. `pa.array` would import pandas if installed, which takes over a second."""
    return pa.Array.from_buffers(arrow_type, len(numbers), [None, pa.py_buffer(numbers)])


@lru_cache(16)
def _names(name: str) -> Any:
    """Return a string array with one entry."""
    data = name.encode()
    offsets = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
