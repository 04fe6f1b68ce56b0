"""Conversations of one side of a connection of the native protocol, drawn by a seed: valid frames, and what is none.

Frames come from the codec and from `Fuzz`. Some have a field that lies or is at its edge, a correlation twice, bytes
changed, cut off or put in between; some are of another protocol. Most are right, so that what follows is looked at.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial

from google.protobuf.message import Message
from headrace.client.net.native_calls import NativeCalls
from headrace.v1 import broker_pb2, errors_pb2, handshake_pb2, native_pb2
from headrace.wire.frames import CONFIRMED, HEADER, PREFACE, Header, Kind, MethodCode, frame_head
from headrace.wire.releases import CAPABILITIES, RELEASE
from headrace_server.internal_v1 import replication_pb2

from tests.security.fuzzing import LIES, Fuzz

OTHER_PROTOCOLS = (
    b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
    b"\x00\x00\x00\x23\x00\x12\x00\x09\x00\x00\x00\x01",  # Kafka: ApiVersions
    b"\x00" * 300,
    b"\xff" * 300,
)
RELEASES = (
    "",
    RELEASE,
    "0.1.0",
    "9.9.9",
    "0.",
    "x",
    "1" * 3_000 + ".1.1",
    "0." + "1" * 5_000 + ".1",
    "\u0661.\u0661.1",
)
FRESH = 250
"""Frames that are drawn anew for each `Draws`; the conversations repeat them with changes."""
MAX_MESSAGE_BYTES = 64 << 10
"""Larger messages cost milliseconds each; `test_fuzz.py` sends them."""
POOL_LIES = 0.02
"""Share of repeated frames with a header that is wrong: each may end its conversation."""
FLOOD = 150
"""Frames of a conversation that repeats one."""
ASKED = 12
"""Requests of a client of which a server's frames speak: 1 to `ASKED`."""


class End(Enum):
    """The end of a connection that receives the frames."""

    SERVER = "server"
    CLIENT = "client"
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one connection receives."""

    end: End
    frames: tuple[bytes, ...]
    host: str = "203.0.113.1"
    cuts: int | None = None
    """Seed of the places, mostly within a header, at which the bytes are cut; `None`: nowhere."""
    is_read: bool = True
    """Whether the sender reads what it is sent."""

    def pieces(self) -> list[memoryview]:
        """The bytes as they arrive."""
        data = memoryview(b"".join(self.frames))
        if self.cuts is None:
            return [data]
        draw, ends = random.Random(self.cuts), list(itertools.accumulate(map(len, self.frames)))
        count = draw.choice((0, 3, len(ends) // 4, len(ends)))
        cuts = {draw.choice(ends) + draw.randint(-3, 40) for _ in range(count)}
        places = [0, *sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
        return [data[start:end] for start, end in itertools.pairwise(places)]


class Draws:
    """Conversations of one seed."""

    def __init__(self, seed: int, number: int) -> None:
        self._fuzz = Fuzz(seed << 32 | number)
        self._random = random.Random(f"{seed} {number}")
        self._greetings = {True: list(self._hellos()), False: list(self._welcomes())}
        share = FRESH // len(End)
        self._pools = {
            End.SERVER: self._fresh(partial(self._fuzz.request_frame, lies=POOL_LIES), 2 * share),
            End.CLIENT: self._fresh(self._answer, share),
            End.LEADER: self._fresh(partial(self._fuzz.stream_frame, lies=POOL_LIES), share // 2),
            End.FOLLOWER: self._fresh(self._message, share // 2),
        }

    def conversation(self) -> Conversation:
        """The next one: half of them are what a broker's clients send."""
        draw = self._random
        end = draw.choices(tuple(End), (6, 3, 2, 2))[0]
        count = draw.choice((1, 5, 20, 80))
        is_flood = draw.random() < 0.02
        frames = list(self._flood(end) if is_flood else self._frames(end, count))
        kind = draw.random()
        greeting = draw.choice(self._greetings[end in (End.SERVER, End.LEADER)][:1] if kind < 0.9 else self._odd(end))
        late = draw.randrange(len(frames)) if kind > 0.97 and frames else 0
        frames.insert(late, greeting)
        host = f"203.0.113.{draw.randint(1, 3)}"
        return Conversation(
            end, tuple(frames), host, draw.getrandbits(32), is_read=draw.random() < (0.5 if is_flood else 0.9)
        )

    def _odd(self, end: End) -> list[bytes]:
        greetings = self._greetings[end in (End.SERVER, End.LEADER)]
        right = greetings[0]
        return [
            *greetings,
            b"",
            *OTHER_PROTOCOLS,
            self._fuzz.mutate(right),
            right + right,
            right + right[len(PREFACE) :],
        ]

    def _frames(self, end: End, count: int) -> Iterator[bytes]:
        draw, pool = self._random, self._pools[end]
        number = 0
        for _ in range(count):
            kind = draw.random()
            if kind < 0.93:
                number += 1
                is_numbered = end in (End.SERVER, End.LEADER, End.FOLLOWER)
                yield _numbered(draw.choice(pool), number if is_numbered else draw.randint(1, ASKED))
            elif kind < 0.97:
                yield self._control(end, number)
            elif kind < 0.975:
                yield _numbered(draw.choice(pool), max(1, number))
            elif kind < 0.99:
                yield self._with_a_lie(draw.choice(pool), number)
            elif kind < 0.995:
                yield self._fuzz.mutate(draw.choice(pool))
            elif kind < 0.998:
                frame = draw.choice(pool)
                yield frame[: draw.randrange(len(frame))]
            else:
                yield draw.choice(OTHER_PROTOCOLS)

    def _flood(self, end: End) -> Iterator[bytes]:
        """One frame again and again; a request that is refused at its header, for it has no deadline."""
        frame = self._random.choice(self._pools[end])
        if end is End.SERVER and self._random.random() < 0.5:
            frame = HEADER.pack(*Header._make(HEADER.unpack_from(frame))._replace(timeout_ms=0)) + frame[HEADER.size :]
        return (_numbered(frame, number) for number in range(1, FLOOD))

    def _control(self, end: End, number: int) -> bytes:
        """A frame without a message, or a greeting out of place."""
        draw = self._random
        kinds = (Kind.CANCEL,) * 8 if end is End.SERVER else (Kind.CONFIRM, Kind.DISCARD, Kind.GOODBYE)
        kind = draw.choice((*kinds, draw.choice(tuple(Kind))))
        which = draw.choice((number, max(0, number - 1), draw.randint(1, 100), 1, 2**64 - 1))
        return frame_head(kind, correlation=0 if kind is Kind.GOODBYE else which)

    def _with_a_lie(self, frame: bytes, number: int) -> bytes:
        """A frame whose header has a wrong field; a length is often wrong by little."""
        draw = self._random
        header = Header._make(HEADER.unpack_from(frame))._replace(correlation=number + 1)
        if draw.random() < 0.5:
            header = self._fuzz.lie(header)
        else:
            field = draw.choice(("size", "message_size", "request_id_size"))
            wrong = getattr(header, field) + draw.choice((-1, 1, 28, -28))
            header = header._replace(**{field: min(max(0, wrong), max(LIES[field]))})
        return HEADER.pack(*header) + frame[HEADER.size :]

    def _fresh(self, make: Callable[[int], bytes], count: int) -> list[bytes]:
        """New frames that are not too large, and of each kind that there is at least one that is right."""
        found: list[bytes] = []
        while len(found) < count:
            frame = make(1)
            if len(frame) <= MAX_MESSAGE_BYTES:
                found.append(frame)
        return found

    # --- frames of servers ---

    def _hellos(self) -> Iterator[bytes]:
        """The right one first."""
        yield NativeCalls("", "fuzz").greeting()
        for release in RELEASES:
            handshake = handshake_pb2.Handshake(release=release, capabilities=CAPABILITIES)
            yield PREFACE + _framed(Kind.HELLO, native_pb2.Hello(client_id="x" * 200, handshake=handshake))
        yield PREFACE + frame_head(Kind.HELLO, self._random.randbytes(100))

    def _welcomes(self) -> Iterator[bytes]:
        for release in (RELEASE, *RELEASES):
            handshake = handshake_pb2.Handshake(release=release, capabilities=CAPABILITIES)
            yield _framed(Kind.WELCOME, native_pb2.Welcome(answered_by="broker-1", handshake=handshake))
        yield _framed(Kind.WELCOME, native_pb2.Welcome(max_requests=64))
        yield frame_head(Kind.WELCOME, self._random.randbytes(100))
        yield frame_head(Kind.ERROR, self._random.randbytes(100))
        yield self._error(0)

    def _error(self, number: int) -> bytes:
        return _framed(Kind.ERROR, self._fuzz.message(errors_pb2.ErrorDetail.DESCRIPTOR), correlation=number)

    def _answer(self, number: int) -> bytes:
        """What answers a request, or passes for it."""
        draw = self._random
        if draw.random() < 0.15:
            return self._error(number)
        batches = draw.randbytes(draw.choice((0, 100, 100, 200, 9_000, draw.choice((9_000, 40_000)))))
        response = broker_pb2.FetchResponse()
        if draw.random() < 0.2:
            response = self._fuzz.message(broker_pb2.FetchResponse.DESCRIPTOR)
        else:
            size = len(batches) if draw.random() < 0.8 else draw.choice((0, 1, 2**31 - 1))
            response.topics.add(name="t").partitions.add(partition=3, batches_size=size)
        return self._attached(Kind.ANSWER, MethodCode.FETCH, response, batches, number)

    def _message(self, number: int) -> bytes:
        """A leader's message."""
        draw = self._random
        response = self._fuzz.message(replication_pb2.ReplicaFetchResponse.DESCRIPTOR)
        batches = draw.randbytes(draw.choice((0, 100, 100, 200, 9_000, draw.choice((9_000, 40_000)))))
        return self._attached(Kind.MESSAGE, MethodCode.REPLICA_FETCH, response, batches, number)

    def _attached(self, kind: Kind, method: MethodCode, response: Message, batches: bytes, number: int) -> bytes:
        """A frame with attachments; where it says that a verdict follows, one mostly does."""
        is_confirmed = self._random.random() < 0.3
        head = _framed(
            kind, response, method=method, correlation=number, attached=len(batches),
            flags=CONFIRMED if is_confirmed else 0,
        )  # fmt: skip
        return head + batches


def _framed(kind: Kind, message: Message, **fields: int) -> bytes:
    return frame_head(kind, message.SerializeToString(), **fields)


def _numbered(frame: bytes, number: int) -> bytes:
    """The frame with this correlation, and a verdict behind it that its flag promises."""
    numbered = b"".join((frame[:8], number.to_bytes(8, "little"), frame[16:]))
    if frame[6] == CONFIRMED and frame[4] in (Kind.ANSWER, Kind.MESSAGE):
        return numbered + frame_head(Kind.CONFIRM if number % 2 else Kind.DISCARD, correlation=number)
    return numbered
