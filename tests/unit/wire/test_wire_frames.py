"""Frames of the native protocol: their bytes, what is refused, and how a reader cuts what arrives."""

from __future__ import annotations

import pytest
from headrace.wire.frames import (
    CLIENT_KINDS,
    CONFIRMED,
    HEADER,
    MAX_FRAME_BYTES,
    MAX_REQUEST_ID_BYTES,
    PREFACE,
    SERVER_KINDS,
    STAGE_BYTES,
    FrameError,
    FrameReader,
    Header,
    Kind,
    MethodCode,
    frame_head,
    parse_header,
)
from hypothesis import given
from hypothesis import strategies as st

ALL = CLIENT_KINDS | SERVER_KINDS


def request(correlation=1, message=b"message", attached=b"", request_id=b"5f-1"):
    head = frame_head(
        Kind.REQUEST, message, method=MethodCode.PRODUCE, correlation=correlation, attached=len(attached),
        timeout_ms=1_000, request_id=request_id,
    )  # fmt: skip
    return head + attached


def reader(admit=lambda header: True, preface=b"", kinds=ALL):
    return FrameReader(kinds, admit, preface)


def feed(frames, data, step=1 << 30):
    """All frames of `data`, which arrives in pieces of `step` bytes at most."""
    found, position = [], 0
    while position < len(data):
        buffer = frames.buffer()
        count = min(step, len(buffer), len(data) - position)
        assert count, "the reader takes no bytes and has no frame"
        buffer[:count] = data[position : position + count]
        frames.received(count)
        position += count
        while (frame := frames.next_frame()) is not None:
            found.append(frame)
    return found


def test_the_bytes_of_a_request_are_pinned():
    """What 0.1.0 writes, byte by byte."""
    expected = bytes.fromhex(
        "17000000" "03" "01" "0000" "0700000000000000" "07000000" "e8030000" "0400" "0000"
    ) + b"5f-1" + b"message" + b"twelve bytes"  # fmt: skip
    assert request(7, attached=b"twelve bytes") == expected
    assert HEADER.size == 28
    assert PREFACE == b"HEADRACE"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 0},
        {"kind": 99},
        {"kind": Kind.ANSWER},
        {"reserved": 1},
        {"flags": CONFIRMED},
        {"flags": 2},
        {"size": MAX_FRAME_BYTES + 1},
        {"message_size": 101},
        {"request_id_size": 101},
        {"request_id_size": MAX_REQUEST_ID_BYTES + 1, "message_size": 0},
        {"request_id_size": 50, "message_size": 51},
        {"correlation": 0},
        {"kind": Kind.HELLO, "correlation": 3},
        {"kind": Kind.CANCEL, "size": 1, "message_size": 0, "request_id_size": 0},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(changes):
    """Before anything is allocated for its body."""
    header = Header(100, Kind.REQUEST, MethodCode.FETCH, 0, 1, 90, 1_000, 10)
    assert parse_header(HEADER.pack(*header), 0, CLIENT_KINDS) == header
    with pytest.raises(FrameError):
        parse_header(HEADER.pack(*header._replace(**changes)), 0, CLIENT_KINDS)


@pytest.mark.parametrize("size", [0, 10, STAGE_BYTES // 4, STAGE_BYTES // 4 + 1, STAGE_BYTES, 1 << 20])
@pytest.mark.parametrize("step", [7, 1_000, 1 << 30])
def test_frames_of_every_size_arrive_whole(size, step):
    """However the bytes are cut; small and large ones in turn."""
    if size > STAGE_BYTES and step == 7:
        step = 4_001
    bodies = [bytes([number]) * size for number in range(3)]
    data = b"".join(request(number + 1, b"m", body) + request(10 + number) for number, body in enumerate(bodies))
    found = feed(reader(), data, step)
    assert [frame.header.correlation for frame in found] == [1, 10, 2, 11, 3, 12]
    assert [bytes(frame.attachments) for frame in found[::2]] == bodies
    assert {frame.message for frame in found[1::2]} == {b"message"}
    assert {frame.request_id for frame in found} == {"5f-1"}


def test_what_is_not_admitted_is_skipped():
    """Its bytes go nowhere, and the next frame is read."""
    frames = reader(lambda header: header.correlation != 2)
    large = request(2, attached=bytes(1 << 20))
    found = feed(frames, request(1) + large + request(2, b"", b"", b"") + request(3), 9_999)
    assert [(frame.header.correlation, frame.is_skipped) for frame in found] == [
        (1, False), (2, True), (2, True), (3, False)
    ]  # fmt: skip
    assert not found[1].body
    assert frames.is_between_frames


def test_headers_are_seen_before_their_turn():
    """Each once; up to one that is none, and behind a large frame once that was taken."""
    frames = reader()

    def arrive(data):
        while data:
            count = min(len(frames.buffer()), len(data))
            frames.buffer()[:count] = data[:count]
            frames.received(count)
            data = data[count:]
            assert count, "there is no room"

    def seen():
        return [header.correlation for header in frames.look_ahead()]

    arrive(request(1) + request(2) + request(3)[:30])
    assert frames.next_frame().header.correlation == 1
    assert seen() == [2, 3]
    assert seen() == []
    arrive(request(3)[30:] + request(4, attached=bytes(STAGE_BYTES))[: STAGE_BYTES // 2])
    assert seen() == [4]
    for number in (2, 3):
        assert frames.next_frame().header.correlation == number
    assert frames.next_frame() is None
    arrive(request(4, attached=bytes(STAGE_BYTES))[STAGE_BYTES // 2 :])
    assert frames.next_frame().header.correlation == 4
    arrive(request(5) + frame_head(Kind.CANCEL, correlation=6) + bytes(HEADER.size) + request(7))
    assert seen() == [5, 6]
    assert seen() == []


def test_a_large_frame_does_not_share_its_memory():
    """Its attachments stay as they are while the next one arrives."""
    frames = reader()
    first = feed(frames, request(1, b"", b"a" * 100_000))[0]
    feed(frames, request(2, b"", b"b" * 100_000))
    assert bytes(first.attachments) == b"a" * 100_000


def test_a_small_frame_does_not_share_its_memory():
    """The buffer that several arrive in is used again."""
    frames = reader()
    first = feed(frames, request(1, b"", b"a" * 100))[0]
    feed(frames, request(2, b"", b"b" * 100))
    assert bytes(first.attachments) == b"a" * 100


def test_the_preface_comes_first():
    """Whole or in pieces; another protocol is told by its first bytes."""
    data = PREFACE + frame_head(Kind.HELLO, b"hello")
    for step in (1, 3, 100):
        assert [frame.message for frame in feed(reader(preface=PREFACE), data, step)] == [b"hello"]
    for other in (b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00", b"HEADRACX"):
        with pytest.raises(FrameError, match="begins with"):
            feed(reader(preface=PREFACE), other)


def test_a_reader_knows_whether_it_is_within_a_frame():
    """So that who sends half of one can be told from who is silent."""
    frames, data = reader(preface=PREFACE), PREFACE + request(1, attached=bytes(100_000))
    assert not frames.is_between_frames
    feed(frames, data[:8])
    assert frames.is_between_frames
    feed(frames, data[8:20])
    assert not frames.is_between_frames
    feed(frames, data[20:100])
    assert not frames.is_between_frames
    assert frames.missing == len(data) - 100
    feed(frames, data[100:])
    assert frames.is_between_frames
    assert frames.missing == 0


@given(
    st.lists(st.tuples(st.integers(1, 50), st.binary(max_size=200), st.booleans()), max_size=20),
    st.lists(st.integers(1, 300), min_size=1, max_size=20),
)
def test_any_cut_gives_the_same_frames(contents, steps):
    """Pieces of any size, frames that are skipped among others."""
    refused = {correlation for correlation, _, is_admitted in contents if not is_admitted}
    data = b"".join(request(correlation, body, body) for correlation, body, _ in contents)
    frames = reader(lambda header: header.correlation not in refused)
    found, position, turn = [], 0, 0
    while position < len(data):
        step = steps[turn % len(steps)]
        found += feed(frames, data[position : position + step])
        position, turn = position + step, turn + 1
    assert [frame.header.correlation for frame in found] == [correlation for correlation, *_ in contents]
    for frame, (correlation, body, _) in zip(found, contents, strict=True):
        assert frame.is_skipped == (correlation in refused)
        if not frame.is_skipped:
            assert frame.message == bytes(frame.attachments) == body


@given(st.binary(max_size=300))
def test_no_bytes_are_taken_for_more_than_they_are(data):
    """Whatever arrives: frames, or an error; never another exception."""
    frames = reader(lambda header: header.size < 1_000)
    try:
        feed(frames, data)
    except FrameError:
        return
