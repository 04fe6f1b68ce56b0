"""Frames of the native protocol: the messages of the gRPC services, on a socket. Pure: no socket, thread or clock.

A connection begins with `PREFACE` and the client's HELLO. Then both sides send frames: a header, the request's id,
one protobuf message, and its batches as attachments, whose sizes the message contains. Numbers are little-endian:

    offset  bytes
    0       4      size: of everything after the header
    4       1      kind, see `Kind`
    5       1      method, see `MethodCode`; 0 if the kind has none
    6       2      flags, see `CONFIRMED`; others are 0
    8       8      correlation: number of the request or message on its connection; 0 if the kind has none
    16      4      message size
    20      4      timeout: of a request, in milliseconds, above 0; else 0
    24      2      request id size: of a request, UTF-8; else 0
    26      2      0

See docs/reference/native-protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from headrace.wire.crc import ReadableBuffer

PREFACE = b"HEADRACE"
HEADER = struct.Struct("<IBBHQIIHH")
CONFIRMED = 1
"""Flag of an ANSWER or MESSAGE: a CONFIRM or DISCARD with its correlation follows directly; it must not be used before.
"""

MAX_FRAME_BYTES = 64 << 20
"""Maximum size of a frame, header excluded: an answer contains at least one batch of any size."""
MAX_HELLO_BYTES = 4 << 10
MAX_REQUEST_ID_BYTES = 64
MAX_TIMEOUT_MS = 0xFFFF_FFFF
STAGE_BYTES = 32 << 10
"""Receive buffer for small frames."""


class Kind(IntEnum):
    """Kind of a frame."""

    HELLO = 1
    """First frame of the client: `Hello`."""
    WELCOME = 2
    """First frame of the server: `Welcome`."""
    REQUEST = 3
    ANSWER = 4
    ERROR = 5
    """Replaces an answer: `ErrorDetail`. With correlation 0 it concerns the connection, and is the last frame."""
    CANCEL = 6
    """The client no longer waits for the answer."""
    CONFIRM = 7
    """The preceding answer is valid."""
    DISCARD = 8
    """The preceding answer is invalid: the log changed while it was sent."""
    GOODBYE = 9
    """The server accepts no more requests on this connection; it answers earlier ones and refuses later ones."""
    MESSAGE = 10
    """One message of a stream, in either direction; each side numbers its own from 1."""
    SESSION = 11
    """The client has renewed its session: a session token, UTF-8. It holds for the requests that follow."""


class MethodCode(IntEnum):
    """RPCs of the native protocol."""

    PRODUCE = 1
    FETCH = 2
    LIST_OFFSETS = 3
    REPLICA_FETCH = 4
    GET_ROWS = 5
    WRITE_ROW = 6


class FrameError(Exception):
    """The peer violated the protocol: the connection must be closed. The text states how."""


class Header(NamedTuple):
    """Header of a frame, in wire order."""

    size: int
    kind: int
    method: int = 0
    flags: int = 0
    correlation: int = 0
    message_size: int = 0
    timeout_ms: int = 0
    request_id_size: int = 0
    reserved: int = 0


class Frame(NamedTuple):
    """Received frame."""

    header: Header
    body: memoryview
    """Request id, message and attachments; empty if the body was skipped. This memory is not overwritten."""
    is_skipped: bool = False

    @property
    def request_id(self) -> str:
        """Request id, or an empty string if it is not printable."""
        text = bytes(self.body[: self.header.request_id_size]).decode(errors="replace")
        return text if text.isprintable() else ""

    @property
    def message(self) -> bytes:
        """Protobuf message."""
        start = self.header.request_id_size
        return bytes(self.body[start : start + self.header.message_size])

    @property
    def attachments(self) -> memoryview:
        """Attachments, concatenated."""
        return self.body[self.header.request_id_size + self.header.message_size :]


def frame_head(
    kind: Kind,
    message: bytes = b"",
    *,
    method: int = 0,
    flags: int = 0,
    correlation: int = 0,
    attached: int = 0,
    timeout_ms: int = 0,
    request_id: bytes = b"",
) -> bytes:
    """Return a frame up to its attachments, which have `attached` bytes and follow it."""
    size = len(request_id) + len(message) + attached
    header = HEADER.pack(size, kind, method, flags, correlation, len(message), timeout_ms, len(request_id), 0)
    return b"".join((header, request_id, message))


def parse_header(data: ReadableBuffer, position: int, kinds: frozenset[Kind]) -> Header:
    """Read a header of one of these kinds.

    Raises:
        FrameError: If the header contradicts itself, or has another kind.
    """
    header = Header._make(HEADER.unpack_from(data, position))
    if header.kind not in kinds:
        raise FrameError(f"a frame of kind {header.kind}")
    if header.reserved or header.flags & ~CONFIRMED or (header.flags and header.kind not in _CONFIRMABLE):
        raise FrameError(f"a frame of kind {header.kind} with flags {header.flags} and reserved {header.reserved}")
    if header.size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {header.size} bytes: the limit is {MAX_FRAME_BYTES}")
    if header.request_id_size > MAX_REQUEST_ID_BYTES or header.request_id_size + header.message_size > header.size:
        raise FrameError(
            f"a frame of {header.size} bytes with a request id of {header.request_id_size} and a message of "
            f"{header.message_size}"
        )
    if (header.kind in _NUMBERED) != (header.correlation != 0) and header.kind != Kind.ERROR:
        raise FrameError(f"a frame of kind {header.kind} with correlation {header.correlation}")
    if header.kind in _EMPTY and header.size:
        raise FrameError(f"a frame of kind {header.kind} with {header.size} bytes")
    return header


_CONFIRMABLE = frozenset({Kind.ANSWER, Kind.MESSAGE})
_NUMBERED = frozenset({Kind.REQUEST, Kind.CANCEL, Kind.CONFIRM, Kind.DISCARD}) | _CONFIRMABLE
_EMPTY = frozenset({Kind.CANCEL, Kind.CONFIRM, Kind.DISCARD, Kind.GOODBYE})

CLIENT_KINDS = frozenset({Kind.HELLO, Kind.REQUEST, Kind.CANCEL, Kind.SESSION})
SERVER_KINDS = frozenset({Kind.WELCOME, Kind.ANSWER, Kind.ERROR, Kind.CONFIRM, Kind.DISCARD, Kind.GOODBYE})
FOLLOWER_KINDS = frozenset({Kind.HELLO, Kind.MESSAGE})
LEADER_KINDS = frozenset({Kind.WELCOME, Kind.MESSAGE, Kind.ERROR, Kind.CONFIRM, Kind.DISCARD})


class FrameReader:
    """Splits the bytes of one connection into frames. Its owner receives into `buffer()` and calls `received`.

    Small frames are received many at once; the body of a large one is received directly into separate memory.
    """

    __slots__ = (
        "_admit",
        "_ahead",
        "_body",
        "_end",
        "_filled",
        "_header",
        "_is_skipped",
        "_kinds",
        "_preface",
        "_skip",
        "_stage",
        "_start",
    )

    def __init__(self, kinds: frozenset[Kind], admit: Callable[[Header], bool], preface: bytes = b"") -> None:
        """Accept frames of `kinds`. `admit` returns for each header whether to receive its body, else it is skipped.

        `preface` must be received before the first frame. Errors of `admit` are raised by `next_frame`.
        """
        self._kinds = kinds
        self._admit = admit
        self._preface = preface
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._start = self._end = 0
        self._ahead = 0
        """Start of the frame at which `look_ahead` continues; it may be past `_end`."""
        self._header: Header | None = None
        self._body: memoryview | None = None
        """Body of the large frame in progress."""
        self._filled = 0
        self._is_skipped = False
        self._skip = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether no incomplete frame was received."""
        return self._header is None and self._start == self._end and not self._preface

    @property
    def missing(self) -> int:
        """Number of missing bytes of a large frame's body; 0 means that none is in progress."""
        return 0 if self._body is None else len(self._body) - self._filled

    @property
    def body_bytes(self) -> int:
        """Size of the memory for a large frame's body; 0 means that none is in progress."""
        return 0 if self._body is None else len(self._body)

    @property
    def begun(self) -> Frame | None:
        """Large frame in progress, without its attachments, once its message has arrived; else `None`."""
        header, body = self._header, self._body
        if header is None or body is None or self._filled < header.request_id_size + header.message_size:
            return None
        return Frame(header, body[: header.request_id_size + header.message_size])

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty after `next_frame` returned `None`."""
        return self._stage[self._end :] if self._body is None else self._body[self._filled :]

    def received(self, count: int) -> None:
        """Record that `count` bytes were received into `buffer()`."""
        if self._body is None:
            self._end += count
        else:
            self._filled += count

    def clear(self) -> None:
        """Drop the received bytes of a connection that is ending, so that `buffer()` has room."""
        self._start = self._end = self._ahead = self._filled = 0
        self._body = None

    def close(self) -> None:
        """Release the memory of a connection that is lost, and the connection itself, to which `admit` belongs."""
        self.clear()
        self._stage, self._admit = memoryview(b""), bool

    def next_frame(self) -> Frame | None:
        """Return the next complete frame; `None` means that more bytes are needed.

        Raises:
            FrameError: If the received bytes are no frame.
        """
        frame = self._cut()
        if frame is None and self._body is None:
            self._make_room()
        return frame

    def look_ahead(self) -> Iterator[Header]:
        """Yield the headers that were received behind the last taken frame, each once, up to one that is none."""
        self._make_room()
        while self._end - self._ahead >= HEADER.size:
            try:
                header = parse_header(self._stage, self._ahead, self._kinds)
            except FrameError:
                return  # `next_frame` raises it when the frames before are taken.
            self._ahead += HEADER.size + header.size
            yield header

    def _make_room(self) -> None:
        """Move the received bytes to the start of the buffer."""
        if self._start:
            rest = bytes(self._stage[self._start : self._end])
            self._stage[: len(rest)] = rest
            self._ahead = max(0, self._ahead - self._start)
            self._start, self._end = 0, len(rest)

    def _cut(self) -> Frame | None:
        if self._preface and not self._take_preface():
            return None
        if self._header is None:
            if self._end - self._start < HEADER.size:
                return None
            header = parse_header(self._stage, self._start, self._kinds)
            self._start += HEADER.size
            self._is_skipped = not self._admit(header)
            self._header = header
            if self._is_skipped:
                self._skip = header.size
            elif header.size > self._end - self._start and header.size > STAGE_BYTES // 4:
                self._body = np.empty(header.size, np.uint8).data
                self._filled = self._end - self._start
                self._body[: self._filled] = self._stage[self._start : self._end]
                self._start = self._end = self._ahead = 0
        header = self._header
        if self._is_skipped:
            return self._skipped(header)
        if self._body is None:
            if header.size > self._end - self._start:
                return None
            body = memoryview(bytes(self._stage[self._start : self._start + header.size]))
            self._start += header.size
        elif self._filled < header.size:
            return None
        else:
            body, self._body = self._body, None
        self._header = None
        return Frame(header, body)

    def _skipped(self, header: Header) -> Frame | None:
        count = min(self._skip, self._end - self._start)
        self._start += count
        self._skip -= count
        if self._skip:
            return None
        self._header = None
        return Frame(header, memoryview(b""), is_skipped=True)

    def _take_preface(self) -> bool:
        found = self._stage[self._start : min(self._end, self._start + len(self._preface))]
        if found != self._preface[: len(found)]:
            raise FrameError(f"the connection begins with {bytes(found)!r}, not as one of this protocol")
        if len(found) < len(self._preface):
            return False
        self._start += len(found)
        self._preface = b""
        return True
