"""CRC32C (Castagnoli, RFC 3720 appendix B.4) of any contiguous buffer, without copying it.

`fastcrc` uses the CPU's instructions and releases the GIL, so other threads receive and send while a batch is checked
(docs/decisions/0047).
"""

from functools import lru_cache
from typing import TypeAlias

import fastcrc
import numpy as np
import numpy.typing as npt

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
"""C-contiguous buffer of bytes: its length is their number."""


def crc32c(buffer: ReadableBuffer, crc: int = 0) -> int:
    """Return the CRC32C of `buffer` as an unsigned 32-bit integer, without copying it.

    Args:
        buffer: contiguous bytes.
        crc: CRC of the preceding bytes, which this one continues; 0 at the start.
    """
    return fastcrc.crc32.iscsi(buffer, crc)


def crc32c_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the CRC32C of each row: for many short rows a fraction of the cost of as many calls.

    Args:
        rows: uint8[n, width].
    """
    # A CRC is linear: that of a row is the XOR of what each of its bytes contributes at its place.
    zeros, changes = _row_table(rows.shape[1])
    crcs: npt.NDArray[np.uint32] = np.bitwise_xor.reduce(changes.take(rows + np.arange(0, len(changes), 256)), axis=1)
    return crcs ^ zeros


@lru_cache(maxsize=4)
def _row_table(width: int) -> tuple[np.uint32, npt.NDArray[np.uint32]]:
    """Return the CRC of zeros, and uint32[width * 256]: by which each byte at each place changes it."""
    zeros = crc32c(bytes(width))
    changes = [
        crc32c(bytes((value, *bytes(width - place - 1))), crc32c(bytes(place))) ^ zeros
        for place in range(width)
        for value in range(256)
    ]
    return np.uint32(zeros), np.array(changes, np.uint32)
