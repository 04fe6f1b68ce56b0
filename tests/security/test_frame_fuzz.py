"""Some thousand of the frames that `make fuzz` sends, and that it finds and explains what breaks."""

from __future__ import annotations

import os

import pytest
from headrace.wire.frames import HEADER, Header, Kind
from headrace_server.native.connection import NativeConnection

from tests.security import frame_fuzz

SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.parametrize("number", range(2))
def test_whatever_arrives_every_end_keeps_its_promises(number: int) -> None:
    """Typed errors or an end, bounded memory, nothing left behind, and honest peers get the right bytes."""
    result = frame_fuzz.run_block(number, SEED)
    assert result.finding is None, "\n".join(frame_fuzz.report(result.finding))
    assert result.frames > 4_000
    assert min(result.ends[end] for end in ("server", "client", "leader", "follower")) > 50


def test_what_breaks_is_printed_as_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception for one method in the server: a greeting and a frame of that method are left."""
    admit = NativeConnection._admit

    def fail(connection: NativeConnection, header: object) -> bool:
        if header.method == 255:  # type: ignore[attr-defined]
            raise ZeroDivisionError("planted")
        return admit(connection, header)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeConnection, "_admit", fail)
    found = (frame_fuzz.run_block(number, 1).finding for number in range(20))
    finding = next(each for each in found if each is not None)  # A frame in thousands has this method.
    assert "ZeroDivisionError: planted" in finding.what
    (told,) = finding.conversations
    assert len(told.frames) <= 2
    assert told.frames[-1].hex() in "\n".join(frame_fuzz.report(finding))


def test_the_same_seed_draws_the_same_frames() -> None:
    """And another one draws others."""
    first, again, other = (frame_fuzz.Draws(*drawn).conversation() for drawn in ((5, 1), (5, 1), (6, 1)))
    assert first == again != other


def test_a_header_that_is_wrong_already_can_get_another_lie() -> None:
    """Its largest value plus one is none that a header could have."""
    draws = frame_fuzz.Draws(1, 1)
    frame = HEADER.pack(*Header(2**32 - 1, Kind.REQUEST, message_size=2**32 - 1, request_id_size=2**16 - 1))
    assert len({draws._with_a_lie(frame, 1) for _ in range(200)}) > 20
