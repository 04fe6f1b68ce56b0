"""What tries of a micro-batch have stored, looked up at the leaders and read back from the log."""

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
    """Of the task in this partition, behind the batch that they are of."""


class StoredRows:
    """The records of one micro-batch of one query. For one thread; `admin` is the caller's."""

    def __init__(self, settings: Mapping[str, Any], admin: Admin, identity: TaskIdentity) -> None:
        self._settings = settings
        self._admin = admin
        self._identity = identity

    def places(self, topic: str, *, all_tasks: bool) -> Stored:
        """Look up where the task's records are, or those of all tasks; has every partition of the topic.

        Raises:
            ConfigError: a broker is of a release that cannot tell.
            HeadraceError: a leader cannot be asked.
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
                f"{topic}: brokers cannot tell what was stored before: {error.message}",
                action="Upgrade them first, or set idempotentRetries=false, whereupon rows may be stored twice.",
            ) from error

    def read(self, places: Stored) -> Iterator[StoredPart]:
        """Read what tasks of this micro-batch have stored, a partition after the other, in order.

        Raises:
            OtherRowsError: some of it is gone, so that nothing can be said of it.
        """
        family = self._identity.producer_id >> PRODUCER_FAMILY_BITS
        for where, (start, end) in places.items():
            if not 0 <= start < end:
                continue
            try:
                for decoded in read_range(self._settings, OffsetRange(where, start, end), fail_on_data_loss=True):
                    header = decoded.columns.header
                    if (
                        header.producer_id >= 0
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
    """Return the part of the places that lies before the given ends; a partition without one has none."""
    return {
        where: StoredOffsets(start, min(end, ends.get(where, 0))) if 0 <= start < ends.get(where, 0) else _NONE
        for where, (start, end) in places.items()
    }


_NONE = StoredOffsets(-1, -1)
