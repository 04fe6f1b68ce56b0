"""Errors that arise in the client and never cross the wire; the others are in `headrace.wire.errors`."""

from collections.abc import Callable, Mapping, Sequence

from headrace.wire.errors import ErrorCode, HeadraceError, Outcome
from headrace.wire.ids import TopicPartition

__all__ = [
    "BufferFullError",
    "ClosedError",
    "ConfigError",
    "DeliveryError",
    "ForkedError",
    "HandlerError",
    "HandlerTimeoutError",
    "LogTruncationError",
    "NoBrokersAvailableError",
    "ProcessEndedError",
    "SerializationError",
    "TopicRecreatedError",
    "WakeupError",
]


class ConfigError(HeadraceError, ValueError):
    """A setting is unknown or out of range. Correct the call.

    The message names the nearest known setting or the range.
    """

    def __init__(self, message: str, *, action: str = "") -> None:
        super().__init__(message, code=ErrorCode.INVALID_CONFIG, outcome=Outcome.NOT_APPLIED, action=action)


class SerializationError(HeadraceError, ValueError):
    """A key or value could not be serialized or deserialized. Nothing was sent; the cause is chained.

    Attributes:
        partition: of the record that was read; `None` if it was being sent.
        offset: of the record that was read, or -1.
    """

    def __init__(
        self, message: str, *, action: str = "", partition: TopicPartition | None = None, offset: int = -1
    ) -> None:
        super().__init__(message, outcome=Outcome.NOT_APPLIED, action=action)
        self.partition = partition
        self.offset = offset


class ClosedError(HeadraceError):
    """The object is closed. Create a new one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the {what} is closed", outcome=Outcome.NOT_APPLIED, fatal=True, action=f"Create a new {what}."
        )


class ForkedError(HeadraceError):
    """The process was forked after the object was created. Threads and connections do not survive a fork."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this {what} was made before the process forked, and its threads and connections stayed in the parent",
            outcome=Outcome.NOT_APPLIED,
            fatal=True,
            action=f"Create the {what} in the child process.",
        )


class BufferFullError(HeadraceError):
    """The producer's buffer stayed full for `max_block_ms`. The record was not accepted; send it again later."""

    def __init__(self, buffer_memory: int, max_block_ms: int) -> None:
        super().__init__(
            f"the buffer of {buffer_memory} bytes stayed full for {max_block_ms} ms",
            outcome=Outcome.NOT_APPLIED,
            retriable=True,
            action="Send it again later; if brokers are healthy, raise buffer_memory or max_block_ms.",
        )


class DeliveryError(HeadraceError):
    """Records that a flush or close could not deliver.

    Attributes:
        failures: each a (partition, records, cause); at most 100 are kept.
        failed_records: total number of records that failed.
        pending_records: number of records still in flight after a flush timeout. They may be stored later.
        outcome: NOT_APPLIED if none of the records is stored, those of failures that were not kept included.
    """

    def __init__(
        self,
        failures: Sequence[tuple[TopicPartition, int, HeadraceError]],
        *,
        failed_records: int,
        pending_records: int = 0,
        is_definite: bool = True,
    ) -> None:
        """`is_definite` is whether none of the failed records may be stored, as far as `failures` does not say it."""
        parts = [f"{records} of {where}: {cause}" for where, records, cause in failures[:5]]
        if len(failures) > 5:
            parts.append(f"and {len(failures) - 5} more")
        if pending_records:
            parts.append(f"{pending_records} still undelivered when the time was up")
        definite = is_definite and not pending_records
        definite = definite and all(cause.outcome == Outcome.NOT_APPLIED for _, _, cause in failures)
        super().__init__(
            f"{failed_records + pending_records} records were not delivered ({'; '.join(parts)})",
            outcome=Outcome.NOT_APPLIED if definite else Outcome.UNKNOWN,
            action="The outcome of each cause says whether its records may be read later.",
        )
        self.failures = tuple(failures)
        self.failed_records = failed_records
        self.pending_records = pending_records


class NoBrokersAvailableError(HeadraceError):
    """No address responded.

    Attributes:
        causes: cause by address, for every address that was tried.
    """

    def __init__(self, causes: Mapping[str, str], *, action: str = "", retriable: bool = True) -> None:
        """`action` is the next step if a cause is more specific than a refused connection."""
        tried = "; ".join(f"{address}: {cause}" for address, cause in causes.items())
        super().__init__(
            f"no broker or coordinator answered ({tried})",
            outcome=Outcome.NOT_APPLIED,
            retriable=retriable,
            action=action or "Check bootstrap_servers and that the cluster is up; `headrace local up` starts one here.",
        )
        self.causes = dict(causes)


def error_text(error: BaseException | None, form: Callable[[object], str] = str) -> str:
    """Return the text of an error of an application, whose own methods may fail."""
    try:
        return form(error)
    except Exception:
        return f"{type(error).__name__} without a text"


class HandlerError(HeadraceError):
    """A handler of `Consumer.run` failed permanently on a record, and no topic takes its dead letter.

    There is no dead-letter topic, or the record with the headers of a dead letter exceeds a limit of the topic, or the
    topic is typed. No offset after the record was committed. The handler's error is chained.

    Attributes:
        partition: partition of the record.
        offset: offset of the record.
        attempts: number of handler calls with it.
    """

    def __init__(
        self, partition: TopicPartition, offset: int, attempts: int, cause: str, *, refused_letter: str = ""
    ) -> None:
        """`refused_letter` says why a dead-letter topic cannot take the record."""
        refused, remedy = "", "set dead_letter"
        if refused_letter:
            refused = f"; its dead letter was refused: {refused_letter}"
            remedy = "raise max_batch_bytes of the dead-letter topic or choose another one"
        super().__init__(
            f"the handler failed at {partition} offset {offset}, {attempts} times: {cause}{refused}",
            outcome=Outcome.NOT_APPLIED,
            action=f"Correct the handler, {remedy}, or seek past the record.",
        )
        self.partition = partition
        self.offset = offset
        self.attempts = attempts


class HandlerTimeoutError(HeadraceError):
    """A handler exceeded handler_timeout_ms on one record. How much of its work was done is unknown."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(f"the handler did not return within {timeout_ms} ms", outcome=Outcome.UNKNOWN)


class ProcessEndedError(HeadraceError):
    """A handler has ended its process on one record, as often as allowed. How much of its work was done is unknown.

    It is the cause in the record's dead letter, or of the `HandlerError` that ends the run.
    """

    def __init__(self, times: int) -> None:
        super().__init__(f"{times} processes ended while the handler was at this record", outcome=Outcome.UNKNOWN)


class LogTruncationError(HeadraceError):
    """Records that this reader has passed are missing from the log or were replaced (KIP-320).

    This happens when a replica without them was elected. The reader continues after a seek.

    Attributes:
        partition: partition of the log.
        position: the requested offset; records below it had been read.
        diverging_offset: first offset whose record may differ now: the offset to continue from.
        leader_epoch: leader epoch of the log at that offset; -1 if it is unknown.
    """

    def __init__(self, partition: TopicPartition, position: int, diverging_offset: int, leader_epoch: int = -1) -> None:
        super().__init__(
            f"{partition} was truncated: of the records read below offset {position}, those from "
            f"{diverging_offset} on were lost or replaced",
            outcome=Outcome.NOT_APPLIED,
            action=f"Undo their effects, then continue from {diverging_offset}: by seek, or with a new Reader.",
        )
        self.partition = partition
        self.position = position
        self.diverging_offset = diverging_offset
        self.leader_epoch = leader_epoch


class TopicRecreatedError(HeadraceError):
    """The topic was deleted and created again: the position belongs to the deleted log. Seek to read the new one.

    Attributes:
        partition: partition of the topic.
        position: offset of the next record in the old topic.
        old_topic_id: id of the topic that was read.
        new_topic_id: id of the topic that has its name now.
    """

    def __init__(self, partition: TopicPartition, position: int, old_topic_id: bytes, new_topic_id: bytes) -> None:
        super().__init__(
            f"topic {partition.topic} was deleted and created again: offset {position} of {partition} was of the topic "
            f"with id {old_topic_id.hex()}, and the topic has id {new_topic_id.hex()} now",
            outcome=Outcome.NOT_APPLIED,
            action="Seek to an offset of the new topic, use a new Reader, or set auto_offset_reset.",
        )
        self.partition = partition
        self.position = position
        self.old_topic_id = old_topic_id
        self.new_topic_id = new_topic_id


class WakeupError(HeadraceError):
    """Another thread called `wakeup()`; the state of the consumer is unchanged and it can be used again."""

    def __init__(self) -> None:
        super().__init__("the wait was ended by wakeup()", outcome=Outcome.NOT_APPLIED)
