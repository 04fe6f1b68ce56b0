"""First bytes of values with a registered schema; see `headrace.client.schemas.codecs`. Pure."""

import struct

from headrace.client.base.errors import SerializationError

HEADER = struct.Struct(">bI")
assert HEADER.size == 5, HEADER.size
MAGIC = 0


def schema_id_of(data: bytes) -> int:
    """Return the id of a value's schema.

    Raises:
        SerializationError: If the value has none.
    """
    if len(data) < HEADER.size or data[0] != MAGIC:
        raise SerializationError(
            f"the {len(data)} bytes do not begin with 0 and the id of a schema",
            action="Read them with another deserializer: the producer wrote them without a registered schema.",
        )
    return int(HEADER.unpack_from(data)[1])
