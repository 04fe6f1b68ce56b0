"""What the chaos of groups is seen with: members in processes that say what they do, and all revisions of etcd.

A member writes a line for each thing that happens to it, so that one that is killed has told all that it did before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.wire.errors import MetastoreUnavailableError
from headrace_devcluster import guarded_exec
from headrace_server.cluster_identity import read_or_create
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import GroupAssignmentKey, GroupOffsetKey
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import PutEvent, WatchEvents
from headrace_server.metastore.etcd import EtcdMetastore

from tests.integration.metastore import connected
from tests.integration.replicated import until

MEMBER = """
import json, os, signal, sys, threading, time
import headrace
from headrace.wire.errors import FencedMemberEpochError, NotOwnerError, TimedOutError, UnknownMemberError

servers, topic, kind, session_timeout_ms = sys.argv[1:]
stopped = threading.Event()

def on_signal(*_):
    if kind == "run":
        sys.exit()  # It has not begun: `run` handles the signal itself.
    stopped.set()

signal.signal(signal.SIGTERM, on_signal)

def say(what, partition, first, end):
    os.write(1, (json.dumps([time.monotonic(), what, partition, first, end]) + "\\n").encode())

def assigned(partitions):
    for where in partitions:
        start = consumer.position(where)
        say("start", where.partition, start, start)

def handle(record):
    say("deliver", record.partition, record.offset, record.offset + 1)

def read():
    while not stopped.is_set():
        parts = consumer.poll(0.1, max_records=5_000).by_partition()
        for where, part in parts.items():
            assert [record.offset for record in part] == list(range(part[0].offset, part[-1].offset + 1))
            say("deliver", where.partition, part[0].offset, part[-1].offset + 1)
        offsets = {where: part[-1].offset + 1 for where, part in parts.items()}
        try:
            consumer.commit(offsets, timeout=3)
        except (FencedMemberEpochError, NotOwnerError, TimedOutError, UnknownMemberError):
            continue
        for where, offset in offsets.items():
            say("commit", where.partition, offset, offset)

def connect(**settings):
    while True:  # Faults may be at work already.
        try:
            return headrace.Consumer(topic, **settings)
        except headrace.NoBrokersAvailableError:
            if stopped.wait(0.1):
                sys.exit()

with connect(bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest",
        session_timeout_ms=int(session_timeout_ms), enable_auto_commit=kind == "run", auto_commit_interval_ms=100,
        fetch_max_wait_ms=50, on_assigned=assigned) as consumer:
    if kind == "run":
        consumer.run(handle, concurrency=3, ordering="partition")
    else:
        read()
"""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """What a member said: a tenure that starts, records that were delivered, an offset that is committed."""

    at: float
    """On the clock that all processes of a machine share, in seconds."""
    what: str
    partition: int
    first: int
    end: int


class MemberProcess:
    """A consumer in a process of its own; `kind`: `read` polls and commits, `run` has handlers on threads."""

    def __init__(self, servers: str, topic: str, kind: str, session_timeout_ms: int) -> None:
        self.kind = kind
        self.lines: list[Line] = []
        guard = [sys.executable, "-I", "-S", guarded_exec.__file__, str(os.getpid())]  # It ends when the tests do.
        command = [*guard, sys.executable, "-c", MEMBER, servers, topic, kind, str(session_timeout_ms)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(Line(*json.loads(line)))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; all that it said is kept."""
        self._process.kill()
        self._wait()

    def check_alive(self) -> None:
        """Fail where it has ended by itself."""
        assert self._process.poll() is None, f"{self.kind} ended by itself: {''.join(self._errors)}"

    def stop(self) -> None:
        """Let it leave the group, and see that nothing went wrong in it."""
        self._process.terminate()
        self._wait()
        # One that a fault started a moment ago may not have got as far as its signal handler.
        ended_early = self._process.returncode == -signal.SIGTERM and not self.lines
        assert ended_early or self._process.returncode == 0, "".join(self._errors)

    def _wait(self) -> None:
        try:
            self._process.wait(40)
        finally:
            self._process.kill()
            for thread in self._threads:
                thread.join(10)
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()


def delivered(members: Iterable[MemberProcess]) -> dict[int, set[int]]:
    """The offsets of each partition that anybody was given."""
    found: dict[int, set[int]] = defaultdict(set)
    for member in members:
        for line in member.lines:
            if line.what == "deliver":
                found[line.partition].update(range(line.first, line.end))
    return found


def check_members(members: list[MemberProcess]) -> None:
    """I27, I29: a tenure starts at what is known to be committed or behind it, and gives every record in order."""
    committed: dict[int, int] = defaultdict(int)
    lines = sorted((line, index) for index, member in enumerate(members) for line in member.lines)
    following: dict[tuple[int, int], int] = {}
    for line, index in lines:
        tenure = index, line.partition
        match line.what:
            case "start":
                assert line.first >= committed[line.partition], f"{line}: {committed[line.partition]} is committed"
                following[tenure] = line.first
            case "deliver":
                assert line.first == following[tenure], f"{line}: {following[tenure]} comes next"
                following[tenure] = line.end
            case "commit":
                committed[line.partition] = max(committed[line.partition], line.end)


@dataclass(slots=True)
class Registries:
    """The keys of the one group, revision by revision: who owns what, and how far each partition was read."""

    keyspace: Keyspace
    owned: dict[bytes, dict[tuple[bytes, int], int]] = field(default_factory=dict)
    """By member: each partition's assignment epoch."""
    epochs: dict[tuple[bytes, int], int] = field(default_factory=dict)
    offsets: dict[tuple[bytes, int], int] = field(default_factory=dict)
    grants: int = 0
    commits: int = 0
    revisions: int = 0
    broken: list[str] = field(default_factory=list)

    def take(self, events: WatchEvents) -> None:
        """Apply one revision, then look at the rules (I24, I26)."""
        self.revisions += bool(events.events)
        for event in events.events:
            key = event.key_value.key if isinstance(event, PutEvent) else event.key
            value = event.key_value.value if isinstance(event, PutEvent) else None
            match self.keyspace.parse(key):
                case GroupAssignmentKey(_, member_id):
                    self._assign(events.revision, member_id, value)
                case GroupOffsetKey(_, topic_id, partition):
                    self._commit(events.revision, (bytes(topic_id), partition), value)
        owners: dict[tuple[bytes, int], bytes] = {}
        for member_id, owned in self.owned.items():
            for where in owned:
                if where in owners:
                    self.broken.append(f"revision {events.revision}: {where[1]} has two owners")
                owners[where] = member_id

    def _assign(self, revision: int, member_id: bytes, value: bytes | None) -> None:
        before = self.owned.pop(member_id, {})
        if value is None:
            return
        message = metadata_pb2.MemberAssignment.FromString(value)
        now = {
            (topic.topic_id, number): epoch
            for topic in message.topics
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=True)
        }
        for where, epoch in now.items():
            if before.get(where) == epoch:
                continue
            self.grants += 1
            if epoch <= self.epochs.get(where, 0):
                self.broken.append(f"revision {revision}: {where[1]} is granted at {epoch}, as it was before")
            self.epochs[where] = epoch
        self.owned[member_id] = now

    def _commit(self, revision: int, where: tuple[bytes, int], value: bytes | None) -> None:
        if value is None:
            self.broken.append(f"revision {revision}: the offset of {where[1]} is gone")
            return
        self.commits += 1
        message = metadata_pb2.CommittedOffset.FromString(value)
        granted = self.owned.get(message.member_id, {}).get(where)
        if granted is None or message.member_epoch < granted:
            self.broken.append(f"revision {revision}: a commit of {where[1]} by a member that does not own it")
        if message.offset < self.offsets.get(where, 0):
            self.broken.append(f"revision {revision}: the offset of {where[1]} goes back to {message.offset}")
        self.offsets[where] = message.offset


class EtcdHistory:
    """Follows the keys of groups in a thread, across outages of etcd, without missing a revision."""

    def __init__(self, endpoint: str) -> None:
        self.registries: Registries | None = None
        self._endpoint = endpoint
        self._wanted: int | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()))

    def __enter__(self) -> EtcdHistory:
        self._thread.start()
        until(lambda: self.registries or self._failure, "the history of etcd")
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted = self._wanted or 0
        self._thread.join(30)
        assert not self._thread.is_alive()

    def finish(self) -> Registries:
        """Everything up to now."""

        async def revision() -> int:
            async with connected(self._endpoint) as metastore:
                return (await metastore.status()).revision

        self._wanted = asyncio.run(revision())
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure
        assert self.registries is not None
        return self.registries

    async def _follow(self) -> None:
        metastore = EtcdMetastore([self._endpoint])
        try:
            identity = await read_or_create(metastore, "headrace", "unused")
            seen = (await metastore.status()).revision
            registries = Registries(identity.keyspace)
            self.registries = registries
            while self._wanted is None or seen < self._wanted:
                with contextlib.suppress(MetastoreUnavailableError):
                    stream = metastore.watch(identity.keyspace.groups_prefix, seen + 1, progress_interval_s=0.5)
                    async with contextlib.aclosing(stream) as items:  # type: ignore[type-var]
                        async for item in items:
                            registries.take(item)
                            seen = max(seen, item.revision)
                            if self._wanted is not None and seen >= self._wanted:
                                break
                await asyncio.sleep(0.05)
        except Exception as error:
            self._failure = error
        finally:
            await metastore.close()
