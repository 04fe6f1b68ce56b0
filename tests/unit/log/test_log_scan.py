"""What a walk over a segment refuses, each by its reason, offset and position (I17)."""

from __future__ import annotations

import pytest
from headrace.log.errors import CorruptLogError
from headrace.log.scan import ChainPoint, check_next, checked_batches, walk_headers
from headrace.wire.batch import read_header


def two_batches(bench) -> bytes:
    """Return a log of two batches of one record each, of leader epoch 3."""
    bench.open()
    bench.append(2, epoch=3)
    return bench.content()


def headers(data: bytes, start: int = 0, offset: int | None = 0):
    return list(walk_headers(lambda size, at: data[at : at + size], "/segment", start, len(data), offset))


def test_a_walk_over_headers_names_what_does_not_fit(bench):
    """A wrong stamp, a wrong offset and a batch that goes past the end are corruption at that position."""
    data = two_batches(bench)
    (first, _), (second, header) = headers(data)
    assert (first, header.base_offset) == (0, 1)
    for damaged, offset, reason in [
        (data[: second + 8] + b"\xff" + data[second + 9 :], 1, "the stamp's checksum is wrong"),
        (data, 5, "base offset 1, expected 5"),
        (data[:-8], 1, "goes past the end"),
    ]:
        with pytest.raises(CorruptLogError, match=reason) as refused:
            headers(damaged, second, offset)
        assert (refused.value.file, refused.value.position) == ("/segment", second)


def test_a_batch_follows_the_one_before_it_or_says_why_not(bench):
    """Both checksums, the offset, the chain and the epoch are checked, in this order."""
    data = two_batches(bench)
    (_, first), (position, header) = headers(data)
    batch = bytearray(data[position:])
    before = ChainPoint(first.end_offset, first.crc, first.leader_epoch)
    assert check_next(batch, header, before) == ""
    assert "base offset 1, expected 2" in check_next(batch, header, before._replace(offset=2))
    assert "the chain is broken" in check_next(batch, header, before._replace(crc=first.crc ^ 1))
    assert "leader epoch 3 after 4" in check_next(batch, header, before._replace(epoch=4))
    assert "the stamp's" in check_next(batch, header._replace(stamp_crc=header.stamp_crc ^ 1), before)
    batch[-1] ^= 1
    assert "the batch's" in check_next(batch, read_header(batch), before)


def test_batches_that_were_read_are_yielded_up_to_a_damaged_one(bench):
    """Whatever is damaged, the error has the file, the offset and the position in it."""
    data = two_batches(bench)
    second = headers(data)[1][0]
    assert [bytes(batch) for batch in checked_batches(data, "/segment", 100)] == [data[:second], data[second:]]
    for damaged, reason in [
        (data[:-1] + b"\xff", "the batch's checksum is wrong"),
        (data[: second + 8] + b"\xff" + data[second + 9 :], "the stamp's checksum is wrong"),
        (data[:-8], "are left"),
    ]:
        batches = checked_batches(damaged, "/segment", 100)
        assert bytes(next(batches)) == data[:second]
        with pytest.raises(CorruptLogError, match=reason) as refused:
            next(batches)
        assert (refused.value.file, refused.value.position, refused.value.offset) == ("/segment", 100 + second, 1)
