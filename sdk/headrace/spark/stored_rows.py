"""Records stored by tries of a micro-batch, looked up at the leaders and read from the log."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.client.admin.admin import Admin
from headrace.client.admin.producer_offsets import StoredOffsets, producer_offsets
from headrace.client.base.errors import ConfigError
from headrace.client.base.records import DecodedBatch
from headrace.client.producer.sequences import SEQUENCES
from headrace.spark.errors import DataLossError, OtherRowsError
from headrace.spark.identity import TaskIdentity
from headrace.spark.range_reader import read_range
from headrace.spark.ranges import OffsetRange
from headrace.wire.errors import InvalidRequestError
from headrace.wire.ids import PRODUCER_FAMILY_BITS, TopicPartition

Stored = dict[TopicPartition, StoredOffsets]


class StoredPart(NamedTuple):
    """Consecutive records that one task stored."""

    where: TopicPartition
    task: int
    decoded: DecodedBatch
    next_sequence: int
    """Sequence of the task in this partition after the batch of these records."""


class StoredRows:
    """Records of one micro-batch of one query. For one thread; the caller owns `admin`."""

    def __init__(self, settings: Mapping[str, Any], admin: Admin, identity: TaskIdentity) -> None:
        self._settings = settings
        self._admin = admin
        self._identity = identity

    def places(self, topic: str, *, all_tasks: bool) -> Stored:
        """Look up the positions of the task's records, or of all tasks', in every partition of the topic.

        Raises:
            ConfigError: If a broker's release does not support the look-up.
            HeadraceError: If a leader cannot be reached.
        """
        who = self._identity
        client_id = self._settings.get("client_id", "")
        asked = producer_offsets(
            self._admin._operations, client_id, topic, who.producer_id, who.batch_id, family=all_tasks
        )
        try:
            return self._admin._run(asked)
        except InvalidRequestError as error:
            raise ConfigError(
                f"{topic}: brokers do not support the look-up of stored records: {error.message}",
                action="Upgrade them first, or set idempotentRetries=false, whereupon rows may be stored twice.",
            ) from error

    def read(self, places: Stored) -> Iterator[StoredPart]:
        """Read the stored records of tasks of this micro-batch, one partition after another, in order.

        Raises:
            OtherRowsError: If some of them were removed, so that the comparison is impossible.
        """
        family = self._identity.producer_id >> PRODUCER_FAMILY_BITS
        for where, (start, end) in places.items():
            if not 0 <= start < end:
                continue
            try:
                for decoded in read_range(self._settings, OffsetRange(where, start, end), fail_on_data_loss=True):
                    header = decoded.columns.header
                    if (
                        not header.is_compacted
                        and header.producer_id >= 0
                        and header.producer_id >> PRODUCER_FAMILY_BITS == family
                        and header.producer_epoch == self._identity.batch_id
                    ):
                        following = (header.base_sequence + header.record_count) % SEQUENCES
                        yield StoredPart(where, header.producer_id % (1 << PRODUCER_FAMILY_BITS), decoded, following)
            except DataLossError as error:
                raise OtherRowsError(
                    f"{where}: records that an earlier try of micro-batch {self._identity.batch_id} stored are gone, "
                    f"so rows cannot be compared with them: {error.message}"
                ) from error


def below(places: Stored, ends: Mapping[TopicPartition, int]) -> Stored:
    """Return the parts of the positions before the given ends; none for a partition without an end."""
    return {
        where: StoredOffsets(start, min(end, ends.get(where, 0))) if 0 <= start < ends.get(where, 0) else _NONE
        for where, (start, end) in places.items()
    }


_NONE = StoredOffsets(-1, -1)
