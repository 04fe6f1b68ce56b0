"""The partition of a key: CRC-32 (zlib) modulo the number of partitions, as in librdkafka's default. PAPER row 16."""

import zlib


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return zlib.crc32(key) % partitions
