"""CRC32C (Castagnoli, RFC 3720 appendix B.4) of any contiguous buffer, without copying it.

`fastcrc` uses the CPU's instructions and releases the GIL, so other threads receive and send while a batch is checked
(docs/decisions/0047).
"""

from typing import TypeAlias

import fastcrc

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
"""C-contiguous buffer."""


def crc32c(buffer: ReadableBuffer, crc: int = 0) -> int:
    """Return the CRC32C of `buffer` as an unsigned 32-bit integer, without copying it.

    Args:
        buffer: contiguous bytes.
        crc: CRC of the preceding bytes, which this one continues; 0 at the start.
    """
    return fastcrc.crc32.iscsi(buffer, crc)
