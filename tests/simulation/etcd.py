"""etcd as brokers and coordinators see it: the shipped in-memory store behind a network that loses answers.

The store is `MemoryMetastore`, which passes the contract tests that etcd passes. In front of it, per request: late or
lost answers, requests applied after the client gave up, NOSPACE that was applied, minutes without service, leases that
end early or late, keepalives that lie; in "buggy" mode reads of an older revision and watch events lost or duplicated
(PROTOCOL T2, H74-H83). Whatever it does, only "succeeded" and "compare failed" are answers (C2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_server.metastore.api import (
    Compare,
    GetResult,
    KeyValue,
    LeaseGrant,
    MetastoreUnknownOutcomeError,
    Operation,
    Put,
    PutEvent,
    RangeResult,
    TxnResult,
    WatchEvent,
    WatchEvents,
)
from headrace_server.metastore.state import Committed, Snapshot
from headrace_server.partition_state import PartitionState, decode

from tests.fakes.memory_metastore import MemoryMetastore
from tests.simulation.network import Network, Stream
from tests.simulation.world import NodeClock, Process, SimulationError, Wait, WallClock, World

ResultT = TypeVar("ResultT")
Done = Callable[[Any], None]

TICK_MS = 500
"""How often leases that are over end."""
CALL_TIMEOUT_MS = 1_500


@dataclass(slots=True)
class EtcdRates:
    """How a run's etcd behaves; each rate is a probability a request."""

    lost_answer_rate: float = 0.0
    late_apply_rate: float = 0.0
    """A write is applied after its client has given up."""
    no_space_rate: float = 0.0
    """A write is applied and answered with NOSPACE."""
    lying_keepalive_rate: float = 0.0
    """A lease that has ended is "renewed"."""
    stale_read_rate: float = 0.0
    lost_event_rate: float = 0.0
    duplicated_event_rate: float = 0.0


class Store(MemoryMetastore):
    """The shipped fake, with its history kept for the checks."""

    def __init__(self, clock: NodeClock) -> None:
        super().__init__(clock=clock)
        self.on_commit: list[Callable[[int, Sequence[WatchEvent]], None]] = []
        self._versions: dict[str, tuple[list[int], list[KeyValue | None]]] = {}

    def _on_commit(self, committed: Committed) -> None:
        revision = committed.revision
        for event in committed.events:
            key, key_value = (
                (event.key_value.key, event.key_value) if isinstance(event, PutEvent) else (event.key, None)
            )
            revisions, values = self._versions.setdefault(key, ([], []))
            revisions.append(revision)
            values.append(key_value)
        for callback in self.on_commit:
            callback(revision, committed.events)

    @property
    def revision(self) -> int:
        """The revision of the last write."""
        return self.state.revision

    @property
    def compacted(self) -> int:
        """The revision up to which the history is forgotten."""
        return self.state.compact_revision

    def now(self, key: str) -> KeyValue | None:
        """One key's present value."""
        return self.state.get(key)

    def at(self, key: str, revision: int) -> KeyValue | None:
        """One key as it stood at `revision`."""
        revisions, values = self._versions.get(key, ([], []))
        index = bisect_right(revisions, revision)
        return values[index - 1] if index else None

    def range_at(self, prefix: str, revision: int) -> RangeResult:
        """All keys of a prefix as they stood at `revision`."""
        found = [self.at(key, revision) for key in sorted(self._versions) if key.startswith(prefix)]
        return RangeResult(tuple(each for each in found if each is not None), revision, self._cluster_id)

    def events_from(self, revision: int) -> list[tuple[int, tuple[WatchEvent, ...]]]:
        """What was written at `revision` and later."""
        return [(each.revision, each.events) for each in self.state.history_from(revision)]

    def back_up(self) -> Snapshot:
        """Take a snapshot."""
        return self.state.snapshot()

    def put_back(self, backup: Snapshot, revision: int) -> None:
        """Hold what a snapshot holds, at `revision`, with the history compacted and the leases' time anew."""
        self.state.leases.clear()
        again = replace(backup, revision=revision, next_lease_id=self.state.next_lease_id)
        self.state.restore(again, self._now_ms())
        self.state.compact(revision)
        self._visible = revision
        for revisions, values in self._versions.values():
            count = bisect_right(revisions, backup.revision)
            del revisions[count:], values[count:]

    def lease_ids(self) -> list[int]:
        """The leases that have not ended."""
        return list(self.state.leases)

    def end_lease(self, lease_id: int) -> None:
        """End a lease before its time."""
        self.state.end_lease(lease_id)
        self._note_changes()

    def prolong_leases(self, by_ms: int) -> None:
        """Extend every lease, as a new leader of etcd does (H75)."""
        for lease in self.state.leases.values():
            lease.expires_ms += by_ms


def run_now(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine of the store, none of which waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    raise AssertionError("the store waited")


class Etcd:
    """The server."""

    def __init__(self, world: World, network: Network, rates: EtcdRates) -> None:
        self.world = world
        self.network = network
        self.rates = rates
        self.process = world.start_process("etcd")
        self.store = Store(NodeClock(world, self.process, WallClock(0)))
        self.away_until_ms = 0
        self.lose_next_answers = 0
        """Apply the next transactions, up to this number, without an answer: for scenarios."""
        self.on_controlled_write: Callable[[int], None] = lambda epoch: None
        self.chance = world.chance("etcd")
        self._watches: list[_Watch] = []
        self.store.on_commit.append(self._notify)
        world.after(TICK_MS, self.process, "", self._tick)

    def _tick(self) -> None:
        if self.world.now_ms >= self.away_until_ms:
            self.store.expire_leases()
        self.world.after(TICK_MS, self.process, "", self._tick)

    def put_back(self, backup: Snapshot, revision: int) -> None:
        """Be started anew over a snapshot: streams break, and what was on its way is gone."""
        self.process.alive = False
        self.network.process_died(self.process, silently=False)
        self._watches.clear()
        self.process = self.world.start_process("etcd")
        self.store.put_back(backup, revision)
        self.world.after(TICK_MS, self.process, "", self._tick)

    def compact(self) -> bool:
        """Forget the history, where there is any."""
        if self.world.now_ms < self.away_until_ms or self.store.compacted >= self.store.revision:
            return False
        run_now(self.store.compact(self.store.revision))
        return True

    def watch(self, watch: _Watch) -> None:
        """Serve a watch: what it has missed first; one that comes too late is told so."""
        if watch.next_revision <= self.store.compacted:
            self.world.count("watches that came after a compaction")
            watch.refuse()
            return
        self._watches.append(watch)
        for revision, events in self.store.events_from(watch.next_revision):
            watch.offer(revision, events)

    def forget(self, watch: _Watch) -> None:
        """End a watch."""
        if watch in self._watches:
            self._watches.remove(watch)

    def _notify(self, revision: int, events: Sequence[WatchEvent]) -> None:
        for watch in list(self._watches):
            watch.offer(revision, events)


class EtcdClient:
    """One process's connection; implements what the nodes need of `Metastore`, for coroutines of `Wait`s."""

    def __init__(self, etcd: Etcd, process: Process) -> None:
        self._etcd = etcd
        self._world = etcd.world
        self._process = process

    async def get(self, key: str) -> GetResult:
        """See `Metastore.get`."""
        return await self._read(lambda: run_now(self._etcd.store.get(key)), lambda at: self._stale_get(key, at))

    async def range(self, prefix: str) -> RangeResult:
        """See `Metastore.range`."""
        store = self._etcd.store
        return await self._read(lambda: run_now(store.range(prefix)), lambda at: store.range_at(prefix, at))

    def _stale_get(self, key: str, revision: int) -> GetResult:
        found = self._etcd.store.range_at(key, revision)
        exact = next((each for each in found.key_values if each.key == key), None)
        return GetResult(exact, revision, found.cluster_id)

    async def _read(self, read: Callable[[], ResultT], stale: Callable[[int], ResultT]) -> ResultT:
        etcd = self._etcd

        def serve() -> ResultT:
            if etcd.rates.stale_read_rate and etcd.chance.random() < etcd.rates.stale_read_rate:
                self._world.count("stale reads")
                return stale(max(1, etcd.store.revision - 1 - etcd.chance.randrange(6)))
            return read()

        return await self._call("", serve, writes=False)

    async def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        what: str = "",
        controller_epoch: int = 0,
    ) -> TxnResult:
        """See `Metastore.txn`; `what` is for the trace, `controller_epoch` for the check that follows (I14)."""
        compares, success, failure = tuple(compares), tuple(success), tuple(failure)
        etcd = self._etcd

        def serve() -> TxnResult:
            result = run_now(etcd.store.txn(compares, success, failure))
            if controller_epoch and result.succeeded:
                etcd.on_controlled_write(controller_epoch)
            return result

        return await self._call(what or describe(success), serve, writes=True, is_txn=True)

    async def grant_lease(self, ttl_ms: int) -> LeaseGrant:
        """See `Metastore.grant_lease`."""
        return await self._call("", lambda: run_now(self._etcd.store.grant_lease(ttl_ms)), writes=True)

    async def revoke_lease(self, lease_id: int) -> bool:
        """See `Metastore.revoke_lease`."""
        return await self._call("", lambda: run_now(self._etcd.store.revoke_lease(lease_id)), writes=True)

    async def renew_lease(self, lease_id: int) -> int:
        """See `Metastore.renew_lease`."""
        etcd = self._etcd

        def renew() -> int:
            left_ms = etcd.store.renew_lease_now(lease_id)
            if left_ms == 0 and etcd.chance.random() < etcd.rates.lying_keepalive_rate:
                self._world.count("lying keepalives")
                return 3_000
            return left_ms

        return await self._call("", renew, writes=False)

    def _call(self, what: str, serve: Callable[[], ResultT], *, writes: bool, is_txn: bool = False) -> Wait[ResultT]:
        return Wait(lambda done: _Request(self._etcd, self._process, what, serve, done, writes, is_txn).send())

    def watch(
        self,
        prefix: str,
        start_revision: int,
        on_events: Callable[[WatchEvents], None],
        on_break: Call,
        on_compacted: Call,
    ) -> None:
        """Follow the changes from `start_revision` on; `on_break` is called once when the stream ends.

        `on_compacted` instead where etcd has the changes since then no more.
        """
        _Watch(self._etcd, self._process, prefix, start_revision, on_events, on_break, on_compacted).open()


Call = Callable[[], object]


class _Request:
    """One call: there, served, back; the client gives up after its time whatever happens."""

    def __init__(
        self, etcd: Etcd, process: Process, what: str, serve: Callable[[], Any], done: Done, writes: bool, is_txn: bool
    ) -> None:
        self._etcd = etcd
        self._world = etcd.world
        self._process = process
        self._what = what
        self._serve = serve
        self._done: Done | None = done
        self._writes = writes
        self._is_txn = is_txn
        self._served = False
        self._timeout = self._world.after(CALL_TIMEOUT_MS, process, "", self._give_up)

    def send(self) -> None:
        etcd = self._etcd
        delay_ms = 0
        if self._writes and etcd.rates.late_apply_rate and etcd.chance.random() < etcd.rates.late_apply_rate:
            self._world.count("writes applied late")
            delay_ms = CALL_TIMEOUT_MS + etcd.chance.randrange(1_000)
        if delay_ms:
            self._world.after(delay_ms, etcd.process, "", self._arrive)
        else:
            etcd.network.send(self._process.name, etcd.process, "", self._arrive)

    def _arrive(self) -> None:
        etcd, world = self._etcd, self._world
        if self._served:
            return  # The transport delivers a request once.
        if world.now_ms < etcd.away_until_ms:
            if etcd.chance.random() < 0.3:  # It waits in a queue and is served when etcd is back.
                world.at(etcd.away_until_ms + 1, etcd.process, "", self._arrive)
            return
        self._served = True
        try:
            result: Any = self._serve()
        except SimulationError:
            raise
        except Exception as error:
            result = error
        if self._what:
            outcome = result.succeeded if isinstance(result, TxnResult) else result
            world.note("etcd", f"{self._process.name}: {self._what} -> {outcome} at {etcd.store.revision}")
        if self._is_txn and etcd.lose_next_answers:
            etcd.lose_next_answers -= 1
            return
        if self._writes:
            if etcd.rates.no_space_rate and etcd.chance.random() < etcd.rates.no_space_rate:
                world.count("NOSPACE though applied")
                result = MetastoreUnknownOutcomeError("NOSPACE")
            elif etcd.rates.lost_answer_rate and etcd.chance.random() < etcd.rates.lost_answer_rate:
                world.count("answers of etcd lost")
                return
        etcd.network.send("etcd", self._process, "", lambda: self._answer(result))

    def _answer(self, result: Any) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._timeout.cancel()
            done(result)

    def _give_up(self) -> None:
        if self._writes:
            self._answer(MetastoreUnknownOutcomeError("no answer in time"))
        else:
            self._answer(MetastoreUnavailableError("no answer in time", outcome=Outcome.NOT_APPLIED))


class _Watch:
    """One watch stream. Events come in order, by whole revision, unless etcd is a buggy one."""

    def __init__(
        self,
        etcd: Etcd,
        process: Process,
        prefix: str,
        start_revision: int,
        on_events: Callable[[WatchEvents], None],
        on_break: Call,
        on_compacted: Call,
    ) -> None:
        self._etcd = etcd
        self._process = process
        self._prefix = prefix
        self._on_compacted = on_compacted
        self.next_revision = start_revision
        self._on_events = on_events
        self._on_break = on_break
        self._stream: Stream = etcd.network.open_stream(process, etcd.process, self._broken)

    def open(self) -> None:
        self._stream.send(self._process, "", lambda: self._etcd.watch(self))

    def _broken(self, side: Process) -> None:
        self._etcd.forget(self)
        if side is self._process:
            self._on_break()

    def refuse(self) -> None:
        self._stream.send(self._etcd.process, "", self._on_compacted)

    def offer(self, revision: int, events: Sequence[WatchEvent]) -> None:
        if self._stream.ended:
            self._etcd.forget(self)
            return
        etcd, rates = self._etcd, self._etcd.rates
        if revision < self.next_revision:
            return
        self.next_revision = revision + 1
        matching = tuple(event for event in events if _key(event).startswith(self._prefix))
        if not matching:
            return
        if rates.lost_event_rate and etcd.chance.random() < rates.lost_event_rate:
            etcd.world.count("watch events lost")
            return
        item = WatchEvents(revision, matching, etcd.store._cluster_id)
        times = 2 if rates.duplicated_event_rate and etcd.chance.random() < rates.duplicated_event_rate else 1
        for _ in range(times):
            self._stream.send(etcd.process, "", lambda: self._on_events(item))


def describe(operations: Sequence[Operation]) -> str:
    """Say for the trace what a transaction writes, where that concerns a partition or a registration."""
    said = []
    for operation in operations:
        if not isinstance(operation, Put):
            continue
        family, _, rest = operation.key.split("/", 4)[-1].partition("/")
        if family == "part":
            said.append(f"p{rest.rpartition('/')[2]} becomes {describe_state(decode(operation.value))}")
        elif family == "live":
            said.append(f"registration of b{rest}")
    return ", ".join(said)


def describe_state(state: PartitionState) -> str:
    """Say what a partition's key holds."""
    leader = "no leader" if state.leader is None else f"b{state.leader.broker_id}"
    text = f"leader {leader} epoch {state.leader_epoch}, in sync {[each.broker_id for each in state.in_sync]}"
    if state.eligible_leaders:
        text += f", eligible {[each.broker_id for each in state.eligible_leaders]}"
    return text


def _key(event: WatchEvent) -> str:
    return event.key_value.key if isinstance(event, PutEvent) else event.key
