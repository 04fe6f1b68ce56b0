"""Session of a consumer with its group: heartbeats, commits and look-ups of initial offsets, in the background.

Three loops are operations in the consumer's background: one sends heartbeats, one commits, and one looks up the initial
offsets of assigned partitions. Each clears its signal, does the pending work, and waits for the signal.
`FetchManager.interrupt` wakes the application's thread for `Membership.pending_events`, completed commits and failures.
"""

import logging
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from headrace.client.base.background import Spawned, WaitSignal
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Operation, Pause, WaitUntil
from headrace.client.base.retry import Backoff
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.group.coordinator_calls import TRY_TIMEOUT_S, CoordinatorSelector
from headrace.client.group.initial_offsets import InitialOffsets
from headrace.client.group.membership import Membership, Phase
from headrace.client.group.offsets import CommitQueue, CommitTicket, OffsetAndMetadata
from headrace.client.group.progress import Progress
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import groups_pb2
from headrace.wire.errors import (
    FencedMemberEpochError,
    HeadraceError,
    MetastoreUnavailableError,
    UnknownMemberError,
)
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

LEAVE_TIMEOUT_S = 3.0
STOP_TIMEOUT_S = 5.0
IDLE_S = 60.0


class GroupSession:
    """Session of one consumer. Its parts are used under `lock`."""

    def __init__(self, config: ConsumerConfig, topics: Iterable[str], fetcher: FetchManager) -> None:
        """Create the session; nothing is sent before `start`."""
        self._config = config
        self._fetcher = fetcher
        self._bootstrap = BootstrapClient(config)
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.Random())
        self._heartbeat_due = fetcher.background.make_signal()
        self._commit_due = fetcher.background.make_signal()
        self._look_up_due = fetcher.background.make_signal()
        self._commit_at_ms = boot_ms() + config.auto_commit_interval_ms
        self._loops: list[Spawned] = []
        self._ends = False
        self.lock = threading.RLock()
        self.membership = Membership(
            config, topics, socket.gethostname(), lambda: secrets.token_bytes(16), now_ms=boot_ms()
        )
        self._changes = fetcher.background.make_changes(self.lock)
        self.progress = Progress(config, fetcher, boot_ms())
        self.commits = CommitQueue(config.client_id, config.group_id)
        self.initial_offsets = InitialOffsets(config, fetcher.admin)
        self.etcd_reachable = True
        self.coordinator_reachable = True
        self.failure: Exception | None = None
        """Unexpected error that ended a loop."""

    def start(self) -> None:
        """Start the loops."""
        for loop in (self.heartbeats, self.committing, self.starting):
            self._loops.append(self._fetcher.background.spawn(self._guarded(loop())))

    def _guarded(self, loop: Operation[None]) -> Operation[None]:
        try:
            yield from loop
        except ClosedError:
            return
        except Exception as error:
            log.error("a consumer of group %s has failed", self._config.group_id, exc_info=error)
            self.failure = error
            self._fetcher.interrupt()

    # --- for the consumer, under the lock ---

    def heartbeat_now(self) -> None:
        """Send a heartbeat soon if one is needed, and end one that waits at a coordinator."""
        if self.membership.needs_heartbeat:
            self._heartbeat_due.set()

    def put(self, ticket: CommitTicket) -> None:
        """Queue a commit of owned partitions; see `CommitTicket`."""
        topic_ids = {}
        for where in ticket.offsets:
            holding = self.membership.owned_partition(where)
            assert holding is not None, "checked by the consumer"
            topic_ids[where] = holding.topic_id
        self.commits.put(ticket, topic_ids)
        self._commit_due.set()

    def auto_commit(self, *, only: Iterable[TopicPartition] | None = None) -> None:
        """Queue processed offsets that are not committed, of all partitions or of `only`."""
        wanted = None if only is None else set(only)
        offsets = {
            where: value
            for where, value in self.progress.committable_offsets().items()
            if (wanted is None or where in wanted)
            and self.membership.owned_partition(where) is not None
            and _differs(self.commits.latest(where), value)
        }
        if offsets:
            self.put(CommitTicket(offsets))

    def settle(self) -> None:
        """Release partitions that can be released after a change, and wake waiting loops."""
        membership = self.membership
        held = {holding.where: holding for holding in membership.owned()}
        membership.release(self._release)
        for where in list(self.commits.committed):
            if where not in held and membership.owned_partition(where) is None:
                self.commits.drop(where)
        if membership.to_start():
            self._look_up_due.set()
        self.heartbeat_now()
        self._changes.notify_all()
        if membership.pending_events() or membership.failure is not None or self.commits.has_done():
            self._fetcher.interrupt()

    def _release(self, where: TopicPartition) -> bool:
        """Return whether a revoked partition has no unresolved commit; if so, remember its last commit."""
        if not self.commits.is_resolved(where):
            return False
        holding = self.membership.owned_partition(where)
        committed = self.commits.committed.get(where)
        if holding is not None and committed is not None:
            self.initial_offsets.remember(holding, committed)
        return True

    def lose_all(self) -> None:
        """End the membership and drop uncommitted offsets."""
        self.membership.lose_all()
        self.commits.drop_all()
        self._heartbeat_due.set()
        self.settle()

    # --- the loops ---

    def heartbeats(self) -> Operation[None]:
        """Join, and send heartbeats until the session ends."""
        selector = CoordinatorSelector(self._config, self._config.group_id, self._bootstrap)
        while True:
            self._heartbeat_due.clear()
            with self.lock:
                if self.membership.is_over:
                    return
                stalled_id = self._become_stale() if self._has_stalled() else None
                request = None if self.membership.phase is Phase.STALE else self.membership.request()
            if stalled_id is not None:
                yield from self._leave(selector, stalled_id, LEAVE_TIMEOUT_S)
                continue
            if request is None:
                yield WaitSignal(self._heartbeat_due, IDLE_S)
                continue
            timeout = (request.max_wait_ms + self.membership.grace_ms) / 1000
            sent_ms = boot_ms()
            try:
                answer = yield from selector.ask("Heartbeat", request, timeout, until=self._heartbeat_due)
            except ClosedError:
                return
            except HeadraceError as error:
                yield from self._heartbeat_failed(selector, error, request)
                continue
            if answer is None:
                with self.lock:
                    self.membership.heartbeat_ended(request)
                continue
            selector.answered()
            with self.lock:
                self.etcd_reachable = self.coordinator_reachable = True
                if request.member_id != self.membership.member_id or self.membership.is_over:
                    continue
                was_over = sent_ms >= self.membership.session_ends_ms()
                is_news = self.membership.heartbeat_answered(answer, sent_ms)
                if is_news:
                    self.settle()
                if was_over:
                    self._fetcher.interrupt()  # Paused delivery can resume.
            if not is_news and boot_ms() - sent_ms < request.max_wait_ms // 2:
                # The coordinator's view is behind: do not retry at once.
                yield WaitSignal(self._heartbeat_due, self.membership.interval_ms / 2000)

    def _heartbeat_failed(
        self, selector: CoordinatorSelector, error: HeadraceError, request: groups_pb2.HeartbeatRequest
    ) -> Operation[None]:
        with self.lock:
            self.coordinator_reachable = not error.retriable or isinstance(error, MetastoreUnavailableError)
            self.etcd_reachable = not isinstance(error, MetastoreUnavailableError)
            membership = self.membership
            if request.member_id != membership.member_id:
                return
            was_refused = membership.refused_since_ms is not None
            membership.heartbeat_failed(error, request, boot_ms())
            is_final = membership.is_over or membership.member_id != request.member_id
            if not is_final and not was_refused and membership.refused_since_ms is not None:
                log.warning(
                    "group %s: no place yet, retry for up to %.0f s, until the session of a stopped member ends: %s",
                    self._config.group_id, membership.join_retry_ms / 1000, error,
                )  # fmt: skip
            if is_final:
                log.warning("group %s: membership ended: %s", self._config.group_id, error)
                self.commits.drop_all()
            self.settle()
        if is_final:
            selector.answered()
            yield Pause(self._backoff.delay_ms(1, error.retry_after_ms) / 1000)
            return
        selector.failed()
        log.info("group %s: no heartbeat (%d): %s", self._config.group_id, selector.failures, error)
        yield Pause(self._backoff.delay_ms(selector.failures, error.retry_after_ms) / 1000)

    def committing(self) -> Operation[None]:
        """Commit queued and processed offsets until the session ends."""
        selector = CoordinatorSelector(self._config, self._config.group_id, self._bootstrap)
        while True:
            self._commit_due.clear()
            with self.lock:
                now = boot_ms()
                if self._config.enable_auto_commit and now >= self._commit_at_ms:
                    self._commit_at_ms = now + self._config.auto_commit_interval_ms
                    self.auto_commit()
                membership = self.membership
                request = None
                if membership.phase is Phase.MEMBER:
                    request = self.commits.request(membership.member_id, membership.member_epoch)
                wait_s = (self._commit_at_ms - now) / 1000 if self._config.enable_auto_commit else IDLE_S
            if request is None:
                yield WaitSignal(self._commit_due, max(0.001, wait_s))
                continue
            timeout = min(TRY_TIMEOUT_S, self._config.request_timeout_ms / 1000)
            try:
                answer = yield from selector.ask("CommitOffsets", request, timeout)
            except ClosedError:
                return
            except HeadraceError as error:
                yield from self._commit_failed(selector, error, request)
                continue
            selector.answered()
            with self.lock:
                if not self.commits.is_flying(request):
                    continue
                for where, topic_id in self.commits.answered(answer):
                    self.membership.lose(where, topic_id, request.member_epoch)
                retries = self.commits.last_error is not None
                self.settle()
            if retries:
                yield Pause(self._backoff.delay_ms(1) / 1000)

    def _commit_failed(
        self, selector: CoordinatorSelector, error: HeadraceError, request: groups_pb2.CommitOffsetsRequest
    ) -> Operation[None]:
        with self.lock:
            if not self.commits.is_flying(request):
                return
            if isinstance(error, UnknownMemberError | FencedMemberEpochError):
                # The coordinator's view may be behind: the next heartbeat shows whether this is still a member (H63).
                self.membership.request_heartbeat()
                self.heartbeat_now()
            elif not error.retriable:
                selector.answered()
                self.commits.failed(error)
                self.settle()
                return
            self.commits.last_error = error
        selector.failed()
        log.info("group %s: offsets are not committed yet (%d): %s", self._config.group_id, selector.failures, error)
        yield Pause(self._backoff.delay_ms(selector.failures, error.retry_after_ms) / 1000)

    def starting(self) -> Operation[None]:
        """Look up initial offsets of assigned partitions until the session ends."""
        selector = CoordinatorSelector(self._config, self._config.group_id, self._bootstrap)
        while True:
            self._look_up_due.clear()
            with self.lock:
                # A partition revoked and reassigned before its last commit completed resumes after that commit (I26).
                holdings = [each for each in self.membership.to_start() if self.commits.is_resolved(each.where)]
            if not holdings:
                yield WaitSignal(self._look_up_due, IDLE_S)
                continue
            try:
                found = yield from self.initial_offsets.find(selector, holdings)
            except ClosedError:
                return
            with self.lock:
                for holding, start in found:
                    self.membership.started(holding, start)
                    if start.is_committed:
                        self.commits.committed.setdefault(
                            holding.where, OffsetAndMetadata(start.offset, start.leader_epoch, start.metadata)
                        )
                waits = bool(self.membership.to_start())
                self.settle()
                if self.initial_offsets.problem is not None:
                    self._fetcher.interrupt()
            if waits:
                yield Pause(self._backoff.delay_ms(max(1, selector.failures + 1)) / 1000)

    def _has_stalled(self) -> bool:
        """Log a missed processing timeout once; return whether this member must leave because of it. Called under the
        lock, as is `_become_stale`: no poll begins between the two.
        """
        now = boot_ms()
        if not self.progress.stalls(now):
            return False
        log.warning(
            "group %s: the application has not polled for %d ms", self._config.group_id, self.progress.silent_ms(now)
        )
        return self._config.leave_on_processing_timeout

    def _become_stale(self) -> bytes:
        """End the membership until the application polls again; return the member id, for the leave request."""
        member_id = self.membership.member_id
        self.membership.lose_all()
        self.commits.drop_all()
        self.membership.phase = Phase.STALE
        self.settle()
        return member_id

    def come_back(self) -> None:
        """Join again if the application had stalled. Called under the lock."""
        if self.membership.phase is Phase.STALE:
            self.membership.phase = Phase.JOINING
            self._heartbeat_due.set()

    def leaving(self, seconds: float) -> Operation[None]:
        """Leave the group; a static member keeps its place until its session expires."""
        with self.lock:
            was_member = self.membership.phase in (Phase.MEMBER, Phase.JOINING)
            member_id = self.membership.member_id
            self.membership.leave()
        if was_member and not self._config.group_instance_id:
            selector = CoordinatorSelector(self._config, self._config.group_id, self._bootstrap)
            yield from self._leave(selector, member_id, seconds)

    def _leave(self, selector: CoordinatorSelector, member_id: bytes, seconds: float) -> Operation[None]:
        request = groups_pb2.LeaveGroupRequest(
            client_id=self._config.client_id, group_id=self._config.group_id, member_id=member_id
        )
        try:
            yield from selector.ask_until("LeaveGroup", request, seconds, self._backoff)
        except ClosedError:
            return
        except HeadraceError as error:
            log.info("group %s: leave request got no response: %s", self._config.group_id, error)

    def ask(self, method: str, request: Any, seconds: float) -> Operation[Any]:
        """Call any coordinator that responds; see `CoordinatorSelector.ask_until`."""
        selector = CoordinatorSelector(self._config, self._config.group_id, self._bootstrap)
        return selector.ask_until(method, request, seconds, self._backoff)

    # --- shutdown ---

    def await_commit(self, ticket: CommitTicket, seconds: float) -> Operation[bool]:
        """Wait until a commit is resolved; return whether it is.

        Raises:
            ClosedError: If the consumer was closed in the meantime.
        """
        yield WaitUntil(self._changes, lambda: ticket.is_done or self._ends, seconds)
        if not ticket.is_done and self._ends:
            raise ClosedError("Consumer")
        return ticket.is_done

    def shutting(self, seconds: float) -> Operation[None]:
        """End the loops, then leave."""
        with self.lock:
            self._ends = True
            self._changes.notify_all()
        for loop in self._loops:
            loop.cancel()
        endings = self._fetcher.background.endings
        yield WaitUntil(endings, lambda: all(loop.done() for loop in self._loops), STOP_TIMEOUT_S)
        yield from self.leaving(seconds)


def boot_ms() -> int:
    """Return the milliseconds of a clock that never goes back and includes suspend time."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def _differs(known: OffsetAndMetadata | None, value: OffsetAndMetadata) -> bool:
    return known is None or known.offset != value.offset
