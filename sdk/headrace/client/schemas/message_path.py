"""Path of a Protobuf message in its file, which a value has before the message; see `codecs`. Pure."""

from typing import Any

from headrace.wire.varint import encode_varint


def path_of(descriptor: Any) -> list[int]:
    """Return the indexes of a message in its file: of the outermost message, of one inside that, and so on."""
    if descriptor.containing_type is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    nested = [each.name for each in descriptor.containing_type.nested_types]
    return [*path_of(descriptor.containing_type), nested.index(descriptor.name)]


def encode_path(path: list[int]) -> bytes:
    """Return the bytes of a path."""
    if path == [0]:
        return b"\0"
    return b"".join(encode_varint(number << 1) for number in (len(path), *path))


def path_size(data: bytes) -> int:
    """Return the bytes of a path at the start of `data`.

    Raises:
        ValueError: If it is cut off.
    """
    count, position = _read_varint(data, 0)
    for _ in range(count >> 1):
        _, position = _read_varint(data, position)
    return position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(data[position : position + 5]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, position + index + 1
    raise ValueError("the path of the message is cut off")
