"""CRC32C (Castagnoli, RFC 3720 appendix B.4) of any contiguous buffer, without copying it.

`google_crc32c` takes bytes and numpy arrays but no memoryview or bytearray; a numpy view over either costs no copy.
"""

from typing import TypeAlias

import google_crc32c
import numpy as np

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
"""C-contiguous buffer."""


def crc32c(buffer: ReadableBuffer, crc: int = 0) -> int:
    """Return the CRC32C of `buffer` as an unsigned 32-bit integer, without copying it.

    Args:
        buffer: contiguous bytes.
        crc: CRC of the preceding bytes, which this one continues; 0 at the start.
    """
    view = buffer if isinstance(buffer, bytes) else np.frombuffer(buffer, np.uint8)
    return int(google_crc32c.extend(crc, view))
