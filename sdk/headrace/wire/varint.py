"""Numbers in base 128, as protobuf and its wire formats write them: seven bits a byte, the lowest first."""


def encode_varint(value: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
