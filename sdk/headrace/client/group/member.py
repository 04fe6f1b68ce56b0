"""Group member part of a consumer: assignment changes, commits and leaving.

Called on the consumer's own thread (or task) between records. Rebalance callbacks run there, partitions are added and
removed there, and partitions that stay assigned are not interrupted.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.client.base.config import ConsumerConfig
from headrace.client.base.operations import InvokeCallback, Operation
from headrace.client.fetch.fetch_manager import FetchManager
from headrace.client.fetch.open_fetch import OpenFetch
from headrace.client.group.consumer_health import ConsumerHealth
from headrace.client.group.membership import Membership, OwnedPartition, Phase
from headrace.client.group.offsets import CommitCallback, CommitTicket, OffsetAndMetadata
from headrace.client.group.progress import Cursor, Work
from headrace.client.group.session import GroupSession, boot_ms
from headrace.v1 import groups_pb2
from headrace.wire.errors import NotOwnerError, Outcome, TimedOutError
from headrace.wire.ids import TopicPartition

log = logging.getLogger("headrace.consumer")

CLOSE_TIMEOUT_S = 10.0


class ConsumerMember:
    """Group member of one consumer."""

    def __init__(
        self, config: ConsumerConfig, topics: Iterable[str], fetcher: FetchManager, open_fetch: OpenFetch
    ) -> None:
        """`open_fetch` is the fetch that the application is currently reading."""
        self._config = config
        self._fetcher = fetcher
        self._open_fetch = open_fetch
        self._is_closing = False
        self.session = GroupSession(config, topics, fetcher)
        self._progress = self.session.progress
        fetcher.gate = self
        fetcher.engine.raise_on_unknown_topic = False

    @property
    def work(self) -> Work | None:
        """Pool of handlers of a run; `None` means that the reading thread handles the records."""
        return self._progress.work

    @work.setter
    def work(self, work: Work | None) -> None:
        self._progress.work = work

    @property
    def membership(self) -> Membership:
        """State of this member; used under the session's lock."""
        return self.session.membership

    # --- between records ---

    def on_poll_begin(self) -> None:
        """Record that the application polls: it has processed the records that it received."""
        with self.session.lock:
            self._progress.poll_begins(boot_ms())
            self.session.come_back()

    def on_poll_end(self) -> None:
        """Record that a poll ends, with or without records, or with an error."""
        self._progress.poll_ends(boot_ms())

    def mark_consumed(self, where: TopicPartition, position: int, leader_epoch: int) -> None:
        """Record that the application receives the records below `position`."""
        self._progress.consumed[where] = OffsetAndMetadata(position, leader_epoch)

    def unmark_consumed(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the application has not received the records of this poll."""
        for where in partitions:
            self._progress.consumed.pop(where, None)

    def checkpoint(self, cursor: Cursor) -> None:
        """Record the progress of an iteration that ends or pauses."""
        with self.session.lock:
            self._progress.checkpoint(cursor)

    def on_seek(self, where: TopicPartition, offset: int) -> None:
        """Record a seek of the application."""
        with self.session.lock:
            self._progress.seek(where, offset)

    def finish(self, where: TopicPartition, value: OffsetAndMetadata) -> None:
        """Record that the application has processed the records below an offset."""
        with self.session.lock:
            self._progress.committable[where] = value

    def stopper(self) -> Iterator[Any]:
        """Return an iterator that ends when the iteration must stop between two records; it runs in C if possible."""
        interrupts = self._fetcher.interrupts
        if self._config.stop_on_session_loss:
            return iter(lambda: bool(interrupts) or self.delivery_paused(), True)
        return iter(interrupts.__len__, 1)

    def delivery_paused(self) -> bool:
        """Return whether delivery is paused: other members may own the partitions (H66), or the pool is full."""
        work = self._progress.work
        if work is not None and work.is_full():
            return True
        return self._config.stop_on_session_loss and boot_ms() >= self.membership.session_ends_ms()

    def wake(self) -> None:
        """Wake the application's thread for `follow`."""
        self._fetcher.interrupt()

    def follow(self) -> Operation[None]:
        """Process changes of the group; return at once if there are none.

        Raises:
            FencedInstanceError, InvalidRequestError, GroupTooLargeError: The group refuses this consumer permanently.
            HeadraceError: If a partition has no initial offset.
        """
        interrupts = self._fetcher.interrupts
        while interrupts:
            interrupts.clear()
            try:
                yield from self._process_events()
            except BaseException:
                interrupts.append(None)  # The next poll processes the rest before it delivers records.
                raise

    def _process_events(self) -> Operation[None]:
        with self.session.lock:
            events = self.membership.pending_events()
            done = self.session.commits.take_done()
            failure = self.session.failure or self.membership.failure
            problem, self.session.initial_offsets.problem = self.session.initial_offsets.problem, None
        for at, ticket in enumerate(done):
            if ticket.callback is not None:
                try:
                    ticket.callback(ticket.offsets, ticket.error)
                except BaseException:
                    with self.session.lock:
                        self.session.commits.give_back_done(done[at + 1 :])  # The next poll calls those.
                    raise
        yield from self._lose(list(events.lost))
        yield from self._revoke(list(events.revoked))
        yield from self._take(list(events.assigned))
        if failure is not None or problem is not None:
            raise failure or problem  # type: ignore[misc]

    def _lose(self, lost: list[TopicPartition]) -> Operation[None]:
        if not lost:
            return
        self._stop_reading(lost)
        with self.session.lock:
            self.membership.acknowledge_lost(lost)
            if self.membership.pending_events():
                self._fetcher.interrupt()
        log.warning("group %s: lost %s", self._config.group_id, ", ".join(map(str, lost)))
        if self._config.on_lost is not None:
            yield InvokeCallback(self._config.on_lost, lost)

    def _revoke(self, revoked: list[OwnedPartition]) -> Operation[None]:
        if self.work is not None and revoked:
            revoked = self.work.may_give_up(revoked)
        if not revoked:
            return
        partitions = [holding.where for holding in revoked]
        try:
            if self._config.enable_auto_commit:
                with self.session.lock:
                    self.session.auto_commit(only=partitions)
            if self._config.on_revoked is not None:
                yield InvokeCallback(self._config.on_revoked, partitions)
        finally:
            self._stop_reading(partitions)
            with self.session.lock:
                self.membership.acknowledge_revoked(revoked)
                self.session.settle()

    def _take(self, assigned: list[OwnedPartition]) -> Operation[None]:
        if not assigned:
            return
        with self.session.lock:
            taken = self.membership.acknowledge_assigned(assigned)
            self._fetcher.read_topics(self.membership.topic_names())
        with self._fetcher.changing() as positions:
            for holding in taken:
                start = holding.start
                assert start is not None
                positions.assign(
                    holding.where, start.offset, topic_id=holding.topic_id, leader_epoch=start.leader_epoch
                )
        for holding in taken:
            assert holding.start is not None
            if self.work is not None:
                self.work.opened(holding.where, holding.start)
        with self.session.lock:
            for holding in taken:
                assert holding.start is not None
                if not holding.start.is_committed:  # A restart before the first record must begin here too.
                    self._progress.committable.setdefault(holding.where, OffsetAndMetadata(holding.start.offset))
        if taken and self._config.on_assigned is not None:
            yield InvokeCallback(self._config.on_assigned, [holding.where for holding in taken])

    def _stop_reading(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self._open_fetch.forget(where)
            if self.work is not None:
                self.work.closed(where)
            with self._fetcher.changing() as positions:
                positions.drop(where)
            with self.session.lock:
                self._progress.forget(where)

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the application's positions."""
        with self._fetcher.changing() as positions:
            return {where: OffsetAndMetadata(positions.position(where)) for where in partitions if where in positions}

    def go_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Rewind to the first unprocessed record of each partition."""
        for where, offset in offsets.items():
            self._open_fetch.forget(where)
            with self._fetcher.changing() as positions:
                if where in positions and positions.position(where) != offset:
                    positions.seek(where, offset)
            self._progress.consumed.pop(where, None)

    # --- offsets ---

    def commit(self, offsets: Mapping[TopicPartition, Any] | None, timeout: float) -> Operation[None]:
        """Commit offsets and wait for the result; `None` means all received offsets.

        Raises:
            NotOwnerError: If another member now owns one of the partitions; the others are committed.
            TimedOutError: If the outcome is not known yet; the commit is still being retried.
            ClosedError: If the consumer was closed before the outcome was known.
        """
        ticket = self.queue(offsets, None)
        if not (yield from self.session.await_commit(ticket, timeout)):
            cause = self.session.commits.last_error
            raise TimedOutError(
                f"the offsets were not stored within {timeout:g} s" + (f": {cause}" if cause else ""),
                outcome=Outcome.UNKNOWN,
                action="It is still being tried; look at health().",
            ) from cause
        if ticket.error is not None:
            raise ticket.error

    def queue(self, offsets: Mapping[TopicPartition, Any] | None, callback: CommitCallback | None) -> CommitTicket:
        """Queue a commit; `callback` is called on the application's thread."""
        self._fetcher.check()
        with self.session.lock:
            self._check_failure()
            if offsets is None:
                received = self._progress.received_offsets()
                wanted = {where: value for where, value in received.items() if self.membership.owned_partition(where)}
            else:
                wanted = {TopicPartition(*where): _as_offset(value) for where, value in offsets.items()}
                for where in wanted:
                    if self.membership.owned_partition(where) is None:
                        raise NotOwnerError(f"this consumer does not own {where}")
                committable = self._progress.committable
                committable.update({where: value for where, value in wanted.items() if where in committable})
            ticket = CommitTicket(wanted, callback)
            self.session.put(ticket)
            if callback is not None and ticket.is_done:
                self._fetcher.interrupt()
            return ticket

    def committed(self, partitions: Iterable[TopicPartition], timeout: float) -> Operation[Any]:
        """Return the committed offsets of some partitions; `None` for a partition without one."""
        wanted = [TopicPartition(*where) for where in partitions]
        request = groups_pb2.FetchOffsetsRequest(
            client_id=self._config.client_id,
            group_id=self._config.group_id,
            min_revision=max(self.membership.revision, self.session.commits.revision),
        )
        answer = yield from self.session.ask("FetchOffsets", request, timeout)
        stored = {
            TopicPartition(topic.name, each.partition): OffsetAndMetadata(each.offset, each.leader_epoch, each.metadata)
            for topic in answer.topics
            for each in topic.partitions
            if each.offset >= 0
        }
        return {where: stored.get(where) for where in wanted}

    def _check_failure(self) -> None:
        failure = self.session.failure or self.membership.failure
        if failure is not None:
            raise failure

    def assignment_epoch(self, where: TopicPartition) -> int:
        """Return the fencing token of a partition.

        Raises:
            NotOwnerError: If this consumer does not read it.
        """
        with self.session.lock:
            holding = self.membership.owned_partition(where)
        if holding is None:
            raise NotOwnerError(f"this consumer does not own {where}")
        return holding.assignment_epoch

    # --- shutdown and health ---

    def closing(self, timeout: float, *, finish: bool) -> Operation[None]:
        """Release all partitions and report it; `finish` means that all received records are processed."""
        deadline = time.monotonic() + timeout
        try:
            with self.session.lock:
                if finish and self.work is None:
                    self._progress.finish_all()
                events = self.membership.pending_events()
                owned = list(self.membership.owned())
                is_over = self.session.failure is not None
            yield from self._lose(list(events.lost))
            if not is_over:
                yield from self._give_up(owned, deadline)
        finally:
            yield from self.session.shutting(max(0.5, deadline - time.monotonic()))

    def _give_up(self, owned: list[OwnedPartition], deadline: float) -> Operation[None]:
        partitions = [holding.where for holding in owned]
        with self.session.lock:
            if self._config.enable_auto_commit:
                self.session.auto_commit(only=partitions)
        if owned and self._config.on_revoked is not None:
            yield InvokeCallback(self._config.on_revoked, partitions)
        with self.session.lock:
            ticket = self.session.commits.last_ticket()
        seconds = max(0.0, deadline - time.monotonic())
        if ticket is not None and not (yield from self.session.await_commit(ticket, seconds)):
            log.warning("group %s: closed before the last commit was stored", self._config.group_id)

    def begins_to_close(self) -> bool:
        """Return whether to close it now: the first call returns `True`, in the process that created it."""
        is_first, self._is_closing = not self._is_closing, True
        return is_first and self._fetcher.is_usable

    def health(self, problem: str, assigned: int, silent_ms: int) -> ConsumerHealth:
        """Return the health of this consumer; `problem` is that of its fetches."""
        now = boot_ms()
        wrong, notices = self._reasons(now)
        if problem:
            notices.append(problem)
        membership, session = self.membership, self.session
        return ConsumerHealth(
            not wrong,
            "; ".join(wrong),
            assigned,
            silent_ms,
            ready=not wrong and membership.phase is Phase.MEMBER and now < membership.session_ends_ms(),
            notices=tuple(notices),
            since_last_heartbeat_ms=now - membership.heard_ms,
            since_last_poll_ms=self._progress.silent_ms(now),
            coordinator_reachable=session.coordinator_reachable,
            etcd_reachable=session.etcd_reachable,
        )

    def _reasons(self, now: int) -> tuple[list[str], list[str]]:
        """Return problems of this consumer, and those that a restart would not solve."""
        session = self.session
        wrong, notices = [], []
        failure = session.failure or self.membership.failure
        if failure is not None:
            wrong.append(str(failure))
        silent_ms = self._progress.silent_ms(now)
        if silent_ms >= self._config.processing_timeout_ms:
            wrong.append(f"the application has not polled for {silent_ms} ms")
        if not session.etcd_reachable:
            notices.append("the coordinators do not reach etcd")
        elif not session.coordinator_reachable:
            notices.append("no coordinator responds")
        if self.membership.refused_since_ms is not None and failure is None:
            notices.append("the group's member limit is reached; joining is retried")
        if session.commits.last_error is not None:
            notices.append(f"offsets are not committed: {session.commits.last_error}")
        if now >= self.membership.session_ends_ms():
            notices.append("the session with the group may be over")
        return wrong, notices


def _as_offset(value: Any) -> OffsetAndMetadata:
    if isinstance(value, OffsetAndMetadata):
        return value
    return OffsetAndMetadata(value) if isinstance(value, int) else OffsetAndMetadata(*value)
