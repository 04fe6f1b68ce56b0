"""`python -m tests.security.frame_fuzz`, `make fuzz`: invalid frames, sent to every end of a connection.

The shipped connections of broker, client, leader and follower receive them over bytes in memory (`frame_ends`), cut at
places that the seed draws, while honest peers on connections of their own work. What breaks a promise is made smaller
and printed as bytes. Exit code 1: something broke.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import structlog
import typer
from headrace_server.native.framed_connection import FRAME_SECONDS, HELLO_SECONDS, STALL_SECONDS

from tests.security.frame_draws import Conversation, Draws
from tests.security.frame_ends import World
from tests.security.in_memory import Broken

AT_ONCE = 16
"""Number of conversations at a time."""
BLOCK = 640
"""Conversations with the same listeners; frames are drawn anew for each block."""
TELL_SECONDS = 5.0


class Finding(NamedTuple):
    """What broke, and the least that breaks it again."""

    what: str
    conversations: list[Conversation]


class Result(NamedTuple):
    """What a block of conversations was."""

    frames: int
    ends: Counter[str]
    finding: Finding | None


def run_block(number: int, seed: int) -> Result:
    """Hold the conversations of one block."""
    draws, frames, ends = Draws(seed, number), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as path:
        world = World(Path(path))
        try:
            for _ in range(BLOCK // AT_ONCE):
                group = [draws.conversation() for _ in range(AT_ONCE)]
                try:
                    frames += world.run(converse(world, group))
                except Exception as error:
                    return Result(frames, ends, explain(group, error))
                ends.update(told.end.value for told in group)
        finally:
            world.close()
    return Result(frames, ends, None)


async def converse(world: World, group: Sequence[Conversation]) -> int:
    """Hold conversations at once, piece by piece in turn; return the number of frames that began to arrive.

    Raises:
        Broken: If a promise does not hold.
    """
    meetings = [world.meet(told) for told in group]
    arrived = dict.fromkeys(meetings, 0)
    pieces = {meeting: deque(meeting.told.pieces()) for meeting in meetings}
    while pieces:
        for meeting, left in list(pieces.items()):
            if not left or meeting.transport.is_closing():
                del pieces[meeting]
                continue
            piece = left.popleft()
            taken = meeting.transport.feed(piece)
            arrived[meeting] += taken
            meeting.look()
            if taken < len(piece):
                left.appendleft(piece[taken:])
                await world.settle(2)
                if meeting.transport.is_paused:
                    del pieces[meeting]  # It waits for an answer that does not come, or that is not read.
        await world.settle(1)
    await world.honest.work()
    await world.honest_follower.work()
    await world.pass_time(HELLO_SECONDS)
    await world.pass_time(max(FRAME_SECONDS, STALL_SECONDS))
    for meeting in meetings:
        meeting.look()
        meeting.transport.abort()
    await world.settle()
    for meeting in meetings:
        meeting.over()
    world.look()
    world.look_behind()
    return sum(_begun(meeting.told.frames, arrived[meeting]) for meeting in meetings)


def _begun(frames: Sequence[bytes], arrived: int) -> int:
    """Return the number of frames that begin in the bytes that have arrived."""
    count = 0
    for frame in frames:
        if arrived <= 0:
            break
        arrived -= len(frame)
        count += 1
    return count


def is_broken(group: Sequence[Conversation]) -> str:
    """Hold conversations with listeners of their own; return what breaks."""
    with tempfile.TemporaryDirectory() as path:
        world = World(Path(path))
        try:
            world.run(converse(world, group))
        except Exception as error:
            return _name(error)
        finally:
            world.close()
    return ""


def _name(error: Exception) -> str:
    if isinstance(error, Broken):
        return str(error)
    trace = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(trace.filename).name}:{trace.lineno})"


def explain(group: list[Conversation], error: Exception) -> Finding:
    """Find the least of the conversations that breaks something, too."""
    what = _name(error)
    broken = next(([told] for told in group if is_broken([told])), group)
    if not is_broken(broken):
        return Finding(f"{what} (only after what came before)", broken)
    for at, told in enumerate(broken):
        for change in ({"cuts": None}, {"is_read": True}):
            smaller = replace(broken[at], **change)
            if is_broken([*broken[:at], smaller, *broken[at + 1 :]]):
                broken[at] = smaller
        size = len(told.frames)
        while size:
            start = 0
            while start < len(broken[at].frames):
                frames = broken[at].frames
                smaller = replace(broken[at], frames=frames[:start] + frames[start + size :])
                if is_broken([*broken[:at], smaller, *broken[at + 1 :]]):
                    broken[at] = smaller
                else:
                    start += size
            size //= 2
    return Finding(is_broken(broken) or what, broken)


def report(finding: Finding) -> Iterator[str]:
    """Yield lines that say what broke, and the bytes."""
    yield f"broken: {finding.what}"
    for told in finding.conversations:
        reads = "" if told.is_read else ", which reads no answer"
        cuts = "" if told.cuts is None else f", cut by seed {told.cuts}"
        yield f"a {told.end.value} receives {len(told.frames)} frames from {told.host}{reads}{cuts}:"
        yield from (f"  {frame.hex()}" for frame in told.frames)


def blocks(seed: int, frames: int, jobs: int) -> Iterator[Result]:
    """Run blocks until the number of frames have arrived."""
    work = partial(run_block, seed=seed)
    if jobs == 1:
        yield from map(work, itertools.count())
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _be_quiet) as pool:
        yield from pool.imap_unordered(work, range(frames))


def _be_quiet() -> None:
    """Log nothing: a connection that breaks the protocol is a line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main(
    frames: Annotated[int, typer.Option(help="Frames that arrive, at least.", min=1)] = 10_000_000,
    seed: Annotated[int, typer.Option(help="Draws other frames.", min=0)] = 1,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = len(os.sched_getaffinity(0)),
) -> None:
    """Send invalid frames to every end of a connection, in memory."""
    _be_quiet()
    print(f"seed {seed}", flush=True)
    started = told_at = time.monotonic()
    arrived, ends = 0, Counter[str]()
    for result in blocks(seed, frames, jobs):
        arrived += result.frames
        ends.update(result.ends)
        now = time.monotonic()
        if result.finding is not None:
            print(*report(result.finding), f"again: make fuzz FUZZ_SEED={seed} FUZZ_FRAMES={frames}", sep="\n")
            raise typer.Exit(1)
        if now - told_at > TELL_SECONDS or arrived >= frames:
            told_at = now
            print(f"{arrived:,} of {frames:,} frames, {arrived / (now - started):,.0f}/s", file=sys.stderr, flush=True)
        if arrived >= frames:
            break
    counted = ", ".join(f"{count:,} to a {end}" for end, count in sorted(ends.items()))
    print(f"{arrived:,} frames in {ends.total():,} conversations ({counted}): nothing broke")


if __name__ == "__main__":
    typer.run(main)
