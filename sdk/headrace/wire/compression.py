"""Compression of a batch's payload, and bounded decompression.

Nothing is decompressed before the size in the header was checked against the reader's limit, and decompression stops at
that size: a payload that is shorter, longer or followed by other bytes raises `CorruptBatchError`. Formats: LZ4 frame,
Zstandard frame (RFC 8878), gzip (RFC 1952), one frame or member each. lz4 and zstandard are imported on first use.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from headrace.wire.errors import CorruptBatchError, UnsupportedCodecError


class Codec(IntEnum):
    """Codec of a payload; the header's `codec` byte."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    GZIP = 3


MAX_RATIO = 1_000
"""Maximum compression ratio that a leader accepts; producers store a payload with a higher one uncompressed."""
_BOUNDED_WINDOW_LOG = 11
"""A block of zstd has at least 4 bytes, and at most a window before compression: 2 KiB are a ratio of 512."""
_WINDOW_BYTES = 2 << 20
"""Window of zstd's default level: repetitions at a greater distance are not found."""
_PIECE_BYTES = 4 << 20
_GZIP_WBITS = 31
_MIN_WINDOW_BYTES = 8 << 20
"""RFC 8878 requires every Zstandard decoder to support windows of 8 MiB. One of the payload's size costs no more than
the payload; a frame with a greater window is refused.
"""


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    """Compress `data` as one frame; deterministic.

    Args:
        codec: the codec; NONE returns `data`.
        data: the payload.
        level: the codec's own level, or `None` for its default.

    Raises:
        UnsupportedCodecError: If the codec's package is not installed; install the extra that the message names.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.LZ4:
            lz4: Any = _lz4_frame()
            packed: bytes = lz4.compress(data, compression_level=lz4.COMPRESSIONLEVEL_MIN if level is None else level)
            return packed
        case Codec.ZSTD:
            zstd: Any = _zstandard()
            frame: bytes = zstd.ZstdCompressor(level=3 if level is None else level).compress(data)
            return frame
        case Codec.GZIP:
            deflater = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return deflater.compress(data) + deflater.flush()


def compress_within_ratio(codec: Codec, data: bytes) -> bytes:
    """Compress `data` as one frame to more than a `MAX_RATIO`th, if need be less than the codec can; deterministic.

    With zstd, repetitions are found at any distance, as a producer with another level or window may have found them:
    what is left of its batch by compaction must not become many times as large.

    Raises:
        UnsupportedCodecError: As `compress`.
    """
    is_wide = codec is Codec.ZSTD and len(data) > _WINDOW_BYTES
    packed = _zstd_over_distances(data) if is_wide else compress(codec, data)
    if len(data) <= MAX_RATIO * len(packed):
        return packed
    if codec is Codec.ZSTD:
        zstd: Any = _zstandard()
        parameters = zstd.ZstdCompressionParameters.from_level(3, window_log=_BOUNDED_WINDOW_LOG)
        frame: bytes = zstd.ZstdCompressor(compression_params=parameters).compress(data)
        return frame
    # LZ4 is always within 255. With the fixed codes, 258 bytes, the longest match, are 13 bits: a ratio of 159.
    deflater = zlib.compressobj(wbits=_GZIP_WBITS, strategy=zlib.Z_FIXED)
    return deflater.compress(data) + deflater.flush()


def _zstd_over_distances(data: bytes) -> bytes:
    """Compress by zstd with a window of the whole data, which a reader that has room for them has, too."""
    zstd: Any = _zstandard()
    parameters = zstd.ZstdCompressionParameters.from_level(
        3, source_size=len(data), window_log=(len(data) - 1).bit_length(), enable_ldm=True
    )
    frame: bytes = zstd.ZstdCompressor(compression_params=parameters).compress(data)
    return frame


def decompress(codec: int, data: bytes | memoryview, payload_bytes: int, limit: int) -> bytes | memoryview:
    """Decompress one frame to exactly `payload_bytes` bytes.

    Args:
        codec: a number of `Codec`.
        data: the stored payload without its padding.
        payload_bytes: the size in the batch's header.
        limit: the reader's maximum size after decompression, in bytes.

    Raises:
        CorruptBatchError: If `payload_bytes` exceeds `limit`, or `data` is not one whole frame of that size.
        UnsupportedCodecError: If the codec is unknown, or its package is not installed.
    """
    if payload_bytes > limit:
        raise CorruptBatchError(
            f"a payload of {payload_bytes} bytes exceeds the limit of {limit}; nothing was decompressed"
        )
    match codec:
        case Codec.NONE:
            payload: bytes | memoryview = data
        case Codec.LZ4:
            payload = _inflate_lz4(data, payload_bytes)
        case Codec.ZSTD:
            payload = _inflate_zstd(data, payload_bytes)
        case Codec.GZIP:
            payload = _inflate_gzip(data, payload_bytes)
        case _:
            raise UnsupportedCodecError(f"codec {codec} is not known to this version")
    if len(payload) != payload_bytes:
        raise CorruptBatchError(f"a payload of {payload_bytes} bytes inflates to {len(payload)}")
    return payload


def _inflate_gzip(data: bytes | memoryview, payload_bytes: int) -> bytes | memoryview:
    inflater = zlib.decompressobj(_GZIP_WBITS)
    try:
        # zlib reads a max_length of 0 as "no limit"; the additional byte also detects output past the stated size.
        payload: bytes | memoryview = inflater.decompress(data, min(payload_bytes, _PIECE_BYTES) + 1)
        if payload_bytes > _PIECE_BYTES:
            rest = lambda most: inflater.decompress(inflater.unconsumed_tail, most)  # noqa: E731
            payload = _in_pieces(payload, rest, payload_bytes)
    except zlib.error as error:
        raise CorruptBatchError(f"the gzip payload is corrupt: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise CorruptBatchError("the gzip payload is not one whole member of the stated size")
    return payload


def _inflate_lz4(data: bytes | memoryview, payload_bytes: int) -> bytes | memoryview:
    inflater: Any = _lz4_frame().LZ4FrameDecompressor()
    try:
        payload: bytes | memoryview = inflater.decompress(data, max_length=min(payload_bytes, _PIECE_BYTES) + 1)
        if payload_bytes > _PIECE_BYTES:
            rest = lambda most: b"" if inflater.eof else inflater.decompress(b"", max_length=most)  # noqa: E731
            payload = _in_pieces(payload, rest, payload_bytes)
    except (RuntimeError, EOFError) as error:
        raise CorruptBatchError(f"the lz4 payload is corrupt: {error}") from error
    if not inflater.eof or inflater.unused_data:
        raise CorruptBatchError("the lz4 payload is not one whole frame of the stated size")
    return payload


def _in_pieces(first: bytes | memoryview, rest: Callable[[int], bytes], payload_bytes: int) -> memoryview:
    """Decompress the rest of a large payload into one buffer; growing the libraries' own doubles the memory."""
    buffer = np.empty(payload_bytes + 1, np.uint8).data
    position, piece = 0, first
    while len(piece):
        buffer[position : position + len(piece)] = piece
        position += len(piece)
        piece = rest(min(_PIECE_BYTES, payload_bytes + 1 - position)) if position <= payload_bytes else b""
    return buffer[:position]


def _inflate_zstd(data: bytes | memoryview, payload_bytes: int) -> bytes:
    zstd: Any = _zstandard()
    window_bytes = max(_MIN_WINDOW_BYTES, 1 << (payload_bytes - 1).bit_length())
    try:
        # For a frame that states its size, the library allocates that size, regardless of max_output_size.
        if zstd.frame_content_size(data) not in {-1, payload_bytes}:
            raise CorruptBatchError("the zstd frame states another size than the batch")
        payload: bytes = zstd.ZstdDecompressor(max_window_size=window_bytes).decompress(
            data, max_output_size=payload_bytes, allow_extra_data=False
        )
    except zstd.ZstdError as error:
        raise CorruptBatchError(f"the zstd payload is corrupt: {error}") from error
    return payload


def _lz4_frame() -> Any:
    try:
        import lz4.frame
    except ImportError as error:
        raise UnsupportedCodecError(
            "the codec lz4 needs a package that is not installed", action="Run `pip install 'headrace[lz4]'`."
        ) from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UnsupportedCodecError(
            "the codec zstd needs a package that is not installed", action="Run `pip install 'headrace[zstd]'`."
        ) from error
    return zstandard
