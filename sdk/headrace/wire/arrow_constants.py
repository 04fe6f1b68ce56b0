"""Types, buffers and arrays of Arrow that all batches share. Imports pyarrow, so it is imported on first use only.

To create one of these types or a buffer of zeros costs microseconds, for each batch as much as its checksum.
"""

from typing import Any

import numpy as np
import pyarrow as pa

TIMESTAMP = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(HEADER)
NO_HEADERS = pa.nulls(0, HEADER)
NO_BYTES = pa.py_buffer(b"")

_SHARED_BYTES = 512 << 10
_ZEROS = pa.py_buffer(bytes(_SHARED_BYTES))


def zeros(size_bytes: int) -> Any:
    """Return an immutable Arrow buffer of zeros; up to 512 KiB all are views of the same one."""
    if size_bytes <= _SHARED_BYTES:
        return _ZEROS.slice(0, size_bytes)
    return pa.py_buffer(np.zeros(size_bytes, np.uint8))
