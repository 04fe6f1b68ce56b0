"""Inflating is bounded, and anything but one whole frame of the stated size is refused."""

import random
import sys

import pytest
from headrace.wire.compression import MAX_RATIO, Codec, compress, compress_within_ratio, decompress
from headrace.wire.errors import CorruptBatchError, UnsupportedCodecError

PACKED = [Codec.LZ4, Codec.ZSTD, Codec.GZIP]
DATA = b"some text that repeats, some text that repeats, " * 50


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("level", [None, 1])
def test_round_trip_is_deterministic(codec: Codec, level: int | None) -> None:
    """The same bytes come back, and the same frame each time."""
    frame = compress(codec, DATA, level)
    assert frame == compress(codec, DATA, level)
    assert decompress(codec, memoryview(frame), len(DATA), 1 << 20) == DATA


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("wrong", [-len(DATA) + 1, -1, 1, 1000])
def test_another_size_than_stated_is_refused(codec: Codec, wrong: int) -> None:
    """Short and long output are both corrupt."""
    with pytest.raises(CorruptBatchError):
        decompress(codec, compress(codec, DATA), len(DATA) + wrong, 1 << 20)


@pytest.mark.parametrize("codec", PACKED)
def test_garbage_truncation_and_a_second_frame_are_refused(codec: Codec) -> None:
    """One frame, whole, and nothing behind it."""
    frame = compress(codec, DATA)
    for bad in (b"", b"garbage!", frame[:-1], frame[:-5], frame[1:], frame + b"\0", frame + frame):
        with pytest.raises(CorruptBatchError):
            decompress(codec, bad, len(DATA), 1 << 20)


@pytest.mark.parametrize("codec", PACKED)
def test_ratio_that_a_leader_accepts(codec: Codec) -> None:
    """Zeros stay compressed by the codec, by no more than a leader accepts; other data are as `compress` has them."""
    zeros = bytes(4 << 20)
    frame = compress_within_ratio(codec, zeros)
    assert 100 < len(zeros) / len(frame) < MAX_RATIO
    assert decompress(codec, memoryview(frame), len(zeros), 4 << 20) == zeros
    assert compress_within_ratio(codec, DATA) == compress(codec, DATA)


def test_a_payload_that_repeats_at_a_distance_stays_compressed() -> None:
    """As by a producer with a great window; a reader that has room for the payload has room for the window."""
    part = random.Random(1).randbytes(3 << 20)
    frame = compress_within_ratio(Codec.ZSTD, part * 3)
    assert len(frame) < 1.1 * len(part)
    assert len(compress(Codec.ZSTD, part * 3)) > 3 * len(part)
    assert decompress(Codec.ZSTD, frame, 3 * len(part), 3 * len(part)) == part * 3


@pytest.mark.parametrize("codec", PACKED)
def test_bomb_is_not_inflated(codec: Codec) -> None:
    """64 MiB of zeros claimed to be 100 bytes cost no memory worth speaking of."""
    import tracemalloc

    frame = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            decompress(codec, frame, 100, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_zstd_window_is_bounded() -> None:
    """A frame that asks for a window of 128 MiB is refused (RFC 8878 lets a decoder)."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(DATA) + stream.flush()
    with pytest.raises(CorruptBatchError, match="zstd"):
        decompress(Codec.ZSTD, frame, len(DATA), 1 << 20)


@pytest.mark.parametrize(("codec", "module"), [(Codec.LZ4, "lz4.frame"), (Codec.ZSTD, "zstandard")])
def test_missing_package_names_the_extra(codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs the missing package."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedCodecError, match=rf"pip install 'headrace\[{codec.name.lower()}\]'"):
        compress(codec, b"x")
    with pytest.raises(UnsupportedCodecError, match="pip install"):
        decompress(codec, b"x", 1, 1)


def test_unknown_codec() -> None:
    """A codec of the future is not mistaken for corruption."""
    with pytest.raises(UnsupportedCodecError):
        decompress(9, b"x", 1, 1)
