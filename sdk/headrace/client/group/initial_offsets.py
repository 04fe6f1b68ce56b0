"""Initial positions in assigned partitions: the committed offset, else auto_offset_reset. No I/O.

A partition that was added after the group began to read its topic is read from its log start even with `latest`,
because no one decided to skip its records.

The response must be at least as new as the assignment, so that records which the former owner committed are not read
again (PROTOCOL H65, I27).
"""

from collections.abc import Iterable, Sequence

from headrace.client.admin.operations import AdminOperations
from headrace.client.base.config import ConsumerConfig
from headrace.client.base.errors import ClosedError
from headrace.client.base.operations import Operation
from headrace.client.fetch.offset_resets import LOOK_UP_TIMEOUT_S
from headrace.client.group.coordinator_calls import CoordinatorSelector
from headrace.client.group.membership import InitialPosition, OwnedPartition
from headrace.client.group.offsets import OffsetAndMetadata
from headrace.v1 import groups_pb2
from headrace.wire.errors import HeadraceError, OffsetOutOfRangeError

FETCH_TIMEOUT_S = 5.0


class InitialOffsets:
    """Look-ups of one session, run by one of its loops."""

    def __init__(self, config: ConsumerConfig, admin: AdminOperations) -> None:
        self._config = config
        self._admin = admin
        self._remembered: dict[tuple[bytes, int], tuple[int, OffsetAndMetadata]] = {}
        self.problem: HeadraceError | None = None
        """Reason why a partition has no initial position; raised to the application."""

    def remember(self, holding: OwnedPartition, committed: OffsetAndMetadata) -> None:
        """Remember the last commit of a released partition, which may be assigned again in the same term."""
        key = holding.topic_id, holding.where.partition
        self._remembered[key] = holding.assignment_epoch, committed

    def find(
        self, selector: CoordinatorSelector, holdings: Sequence[OwnedPartition]
    ) -> Operation[list[tuple[OwnedPartition, InitialPosition]]]:
        """Look up initial positions; partitions whose position cannot be found now are omitted.

        Raises:
            ClosedError: If the consumer was closed.
        """
        request = groups_pb2.FetchOffsetsRequest(
            client_id=self._config.client_id,
            group_id=self._config.group_id,
            min_revision=max(holding.revision for holding in holdings),
        )
        by_key = {(holding.topic_id, holding.where.partition): holding for holding in holdings}
        topics: dict[bytes, groups_pb2.GroupTopicPartitions] = {}
        for (topic_id, number), holding in sorted(by_key.items()):
            if topic_id not in topics:
                topics[topic_id] = request.topics.add(topic_id=topic_id, name=holding.where.topic)
            topics[topic_id].partitions.append(number)
        try:
            answer = yield from selector.ask("FetchOffsets", request, FETCH_TIMEOUT_S)
        except ClosedError:
            raise
        except HeadraceError as error:
            if not error.retriable:
                self.problem = error
            selector.failed()
            return []
        selector.answered()
        found: list[tuple[OwnedPartition, InitialPosition]] = []
        missing: list[OwnedPartition] = []
        added: list[OwnedPartition] = []
        for topic in answer.topics:
            for stored in topic.partitions:
                holding = by_key[topic.topic_id, stored.partition]
                start = self._newest(holding, stored)
                if start is None:
                    (added if stored.is_added else missing).append(holding)
                else:
                    found.append((holding, start))
        at = self._config.auto_offset_reset
        found += yield from self._reset(missing, at)
        found += yield from self._reset(added, "earliest" if at == "latest" else at)
        return found

    def _newest(self, holding: OwnedPartition, stored: groups_pb2.PartitionOffset) -> InitialPosition | None:
        """Return the stored offset, or the newer one that this member committed in the same term."""
        start = None
        if stored.offset >= 0:
            start = InitialPosition(stored.offset, stored.leader_epoch, stored.metadata, is_committed=True)
        epoch, own = self._remembered.pop((holding.topic_id, holding.where.partition), (-1, None))
        if own is not None and epoch == holding.assignment_epoch:
            return InitialPosition(own.offset, own.leader_epoch, own.metadata, is_committed=True)
        return start

    def _reset(
        self, holdings: Iterable[OwnedPartition], at: str
    ) -> Operation[list[tuple[OwnedPartition, InitialPosition]]]:
        """Look up the log start or end, one topic at a time, or one partition at a time if that fails."""
        by_topic: dict[str, list[OwnedPartition]] = {}
        for holding in holdings:
            by_topic.setdefault(holding.where.topic, []).append(holding)
        if by_topic and at == "error":
            names = ", ".join(str(holding.where) for some in by_topic.values() for holding in some)
            self.problem = OffsetOutOfRangeError(
                f"group {self._config.group_id} has no committed offset for {names}",
                action="Commit one with `headrace group reset`, or set auto_offset_reset.",
            )
            return []
        found: list[tuple[OwnedPartition, InitialPosition]] = []
        for some in by_topic.values():
            whole = yield from self._look_up(some, at)
            if whole is None and len(some) > 1:
                for holding in some:
                    found += (yield from self._look_up([holding], at)) or []
            else:
                found += whole or []
        return found

    def _look_up(
        self, holdings: Sequence[OwnedPartition], at: str
    ) -> Operation[list[tuple[OwnedPartition, InitialPosition]] | None]:
        timeout = min(self._config.request_timeout_ms / 1000, LOOK_UP_TIMEOUT_S)
        try:
            _, answers = yield from self._admin.find_offsets(
                holdings[0].where.topic,
                at,
                partitions=[holding.where.partition for holding in holdings],
                timeout=timeout,
                topic_id=holdings[0].topic_id,
            )
        except ClosedError:
            raise
        except HeadraceError:
            return None  # The look-up is repeated; the group ends the assignment of a deleted topic.
        return [(holding, InitialPosition(answers[holding.where].offset)) for holding in holdings]
