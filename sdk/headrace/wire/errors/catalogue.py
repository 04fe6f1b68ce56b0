"""Every error that crosses the wire: one class per code, with its gRPC status, defaults and next step.

Separate classes exist only for errors that a caller handles differently. An unspecified outcome is UNKNOWN: a record
whose outcome is UNKNOWN may be read later (PROTOCOL H52). The module is one table, longer than others because a row is
a class: its length is the number of errors.
"""

from __future__ import annotations

from typing import Any

from headrace.wire.errors.base import ErrorCode, HeadraceError, Outcome

_REFRESH = "Refresh the metadata and try again."


class InvalidRequestError(
    HeadraceError,
    code=ErrorCode.INVALID_REQUEST,
    status="INVALID_ARGUMENT",
    action="Correct the request; it can never succeed as it is.",
):
    """The request can never succeed unchanged."""


class InvalidTopicNameError(
    InvalidRequestError,
    code=ErrorCode.INVALID_TOPIC_NAME,
    status="INVALID_ARGUMENT",
    action="Use 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'.",
):
    """The string cannot name a topic."""


class InvalidConfigError(
    InvalidRequestError,
    code=ErrorCode.INVALID_CONFIG,
    status="INVALID_ARGUMENT",
    action="Correct the setting; DescribeConfigs lists names and ranges.",
):
    """A setting is unknown or its value is out of range; the message names the nearest known one or the range."""


class InvalidPartitionsError(
    InvalidRequestError,
    code=ErrorCode.INVALID_PARTITIONS,
    status="INVALID_ARGUMENT",
    action="Request at least one partition; the number of partitions cannot shrink.",
):
    """The number of partitions is out of range or would shrink the topic."""


class InvalidReplicationFactorError(
    InvalidRequestError,
    code=ErrorCode.INVALID_REPLICATION_FACTOR,
    status="INVALID_ARGUMENT",
    action="Request at least one replica and no more than there are brokers.",
):
    """The replication factor is out of range or exceeds the number of brokers."""


class CorruptBatchError(
    InvalidRequestError,
    code=ErrorCode.CORRUPT_BATCH,
    status="INVALID_ARGUMENT",
    action="A producer encodes the batch again; a reader may continue at the next valid offset.",
):
    """A record batch violates its format.

    Attributes:
        base_offset: base offset of the batch, or -1 if the header could not be trusted.
        next_offset: offset after the batch, from which a reader may continue, or -1 if it is unknown.
        offset: first offset of it that a reader requested, or -1.
        batch: its bytes as a reader received them; empty if the error was not raised by a reader.
        written_so: whether its checksums are right, so that every replica has it in this state.
    """

    def __init__(self, message: str = "", *, base_offset: int = -1, next_offset: int = -1, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.offset = -1
        self.batch = b""
        self.written_so = False


class BatchTooLargeError(
    InvalidRequestError,
    code=ErrorCode.BATCH_TOO_LARGE,
    status="INVALID_ARGUMENT",
    action="Send smaller batches or raise the topic's max_batch_bytes.",
):
    """A batch or message exceeds its receiver's limit."""


class UnsupportedCodecError(
    InvalidRequestError,
    code=ErrorCode.UNSUPPORTED_CODEC,
    status="INVALID_ARGUMENT",
    action="Use none, lz4, zstd or gzip, and install its package.",
):
    """The codec is unknown to this process, or its package is not installed; the message names the package."""


class InvalidTimestampError(
    InvalidRequestError,
    code=ErrorCode.INVALID_TIMESTAMP,
    status="INVALID_ARGUMENT",
    action="Set the clock, or widen the topic's timestamp_before_max_ms or timestamp_after_max_ms.",
):
    """A record's timestamp differs from the broker's clock by more than the topic allows."""


class UnsupportedVersionError(
    HeadraceError,
    code=ErrorCode.UNSUPPORTED_VERSION,
    status="UNIMPLEMENTED",
    action="Upgrade the older of the two sides.",
):
    """The peer does not support this call or this version of the format."""


class DeadlineRequiredError(
    InvalidRequestError,
    code=ErrorCode.DEADLINE_REQUIRED,
    status="INVALID_ARGUMENT",
    action="Give every call a deadline (timeout=... in gRPC).",
):
    """The call carries no deadline."""


class UnknownTopicError(
    HeadraceError, code=ErrorCode.UNKNOWN_TOPIC, status="NOT_FOUND", action="Create the topic, or check its name."
):
    """No topic has this name."""


class UnknownTopicIdError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_TOPIC_ID,
    status="NOT_FOUND",
    retriable=True,
    action="Refresh the metadata; if the id differs, the topic was re-created, so do not send again by name.",
):
    """No topic has this id. Refresh the metadata, never send again by name (another topic may have the name now)."""


class UnknownPartitionError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_PARTITION,
    status="NOT_FOUND",
    retriable=True,
    action="Refresh the metadata and choose one of the topic's partitions.",
):
    """The topic has no such partition, or the server has not received its metadata yet."""


class TopicAlreadyExistsError(
    HeadraceError,
    code=ErrorCode.TOPIC_ALREADY_EXISTS,
    status="ALREADY_EXISTS",
    action="Use the existing topic, or choose another name.",
):
    """The topic already exists."""


class OffsetOutOfRangeError(
    HeadraceError,
    code=ErrorCode.OFFSET_OUT_OF_RANGE,
    status="OUT_OF_RANGE",
    action="Continue from the log's start or end, as auto_offset_reset says, or seek.",
):
    """The offset is before the log start or after the log end. Choose a new position."""


class UnknownBrokerError(
    HeadraceError, code=ErrorCode.UNKNOWN_BROKER, status="NOT_FOUND", action="Choose one of the cluster's brokers."
):
    """No broker has this id."""


class ReadOnlyTopicError(
    HeadraceError,
    code=ErrorCode.READ_ONLY_TOPIC,
    status="FAILED_PRECONDITION",
    action="Send to the topic at its source, or promote the mirror.",
):
    """The topic is a mirror of another cluster's; producers write to it once it is promoted."""


class DivergedLogError(
    HeadraceError,
    code=ErrorCode.DIVERGED_LOG,
    status="FAILED_PRECONDITION",
    action="Decide which of the two logs is right; delete the topic with the other one, and mirror it again.",
):
    """Copied batches do not continue the log: it and their source have different records."""


class NotLeaderError(
    HeadraceError, code=ErrorCode.NOT_LEADER, status="FAILED_PRECONDITION", retriable=True, action=_REFRESH
):
    """The broker is not the partition's leader. Follow `leader` or refresh the metadata."""


class FencedLeaderEpochError(
    HeadraceError, code=ErrorCode.FENCED_LEADER_EPOCH, status="FAILED_PRECONDITION", retriable=True, action=_REFRESH
):
    """The caller's leader epoch is older than the partition's. Refresh the metadata and validate positions."""


class UnknownLeaderEpochError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_LEADER_EPOCH,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again; the broker has not seen the change yet.",
):
    """The caller's leader epoch is newer than the broker's, which lags behind."""


class LeaderNotAvailableError(
    HeadraceError,
    code=ErrorCode.LEADER_NOT_AVAILABLE,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again; if it persists, restart a replica's broker.",
):
    """The partition has no leader now."""


class NotEnoughReplicasError(
    HeadraceError,
    code=ErrorCode.NOT_ENOUGH_REPLICAS,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again; if it persists, restart the missing brokers.",
):
    """Fewer replicas are in sync than the topic requires; nothing was appended."""


class NotEnoughReplicasAfterAppendError(
    HeadraceError,
    code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    status="UNAVAILABLE",
    retriable=True,
    outcome=Outcome.UNKNOWN,
    action="Send the same batch again with its producer id and sequence; without them it may be stored twice.",
):
    """The batch was appended, then too few replicas stayed in sync to acknowledge it."""


class OffsetNotAvailableError(
    HeadraceError,
    code=ErrorCode.OFFSET_NOT_AVAILABLE,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again; the new leader waits for the log bounds of its followers.",
):
    """A new leader has not determined its high watermark, or its log start, yet."""


class NotControllerError(
    HeadraceError,
    code=ErrorCode.NOT_CONTROLLER,
    status="FAILED_PRECONDITION",
    retriable=True,
    action="Use the controller named, or another coordinator.",
):
    """The coordinator is not the controller. Use another one."""


class OutOfOrderSequenceError(
    HeadraceError,
    code=ErrorCode.OUT_OF_ORDER_SEQUENCE,
    status="FAILED_PRECONDITION",
    retriable=True,
    action="Send the batches before this one first, then this one unchanged.",
):
    """A sequence before this one is missing; nothing was appended."""


class UnknownProducerError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_PRODUCER,
    status="FAILED_PRECONDITION",
    action="Resolve what is in flight, then request a new producer epoch and start again at sequence 0.",
):
    """The broker has forgotten this producer; bump the epoch once nothing is in flight."""


class FencedProducerError(
    HeadraceError,
    code=ErrorCode.FENCED_PRODUCER,
    status="FAILED_PRECONDITION",
    action="Close this producer; another one with its id has taken over.",
    fatal=True,
):
    """A newer epoch of this producer is active."""


class ThrottledError(
    HeadraceError,
    code=ErrorCode.THROTTLED,
    status="RESOURCE_EXHAUSTED",
    retriable=True,
    action="Wait for retry_after_ms, then try again.",
):
    """The server's limit of requests in flight is reached, or a quota is exhausted. Wait `retry_after_ms`."""


class StorageFullError(
    HeadraceError,
    code=ErrorCode.STORAGE_FULL,
    status="RESOURCE_EXHAUSTED",
    retriable=True,
    action="Free disk space or shorten retention; then writes succeed again.",
):
    """The broker's disk is full; reads continue."""


class StorageOfflineError(
    HeadraceError,
    code=ErrorCode.STORAGE_OFFLINE,
    status="UNAVAILABLE",
    retriable=True,
    action="Look at the broker's log: its disk has failed or a file is corrupt.",
):
    """The replica's storage has failed or is corrupt; the broker does not serve it any more."""


class NotEnoughBrokersError(
    HeadraceError,
    code=ErrorCode.NOT_ENOUGH_BROKERS,
    status="UNAVAILABLE",
    retriable=True,
    action="Start more brokers or request fewer replicas.",
):
    """Fewer brokers are alive than the request needs."""


class MetastoreUnavailableError(
    HeadraceError,
    code=ErrorCode.METASTORE_UNAVAILABLE,
    status="UNAVAILABLE",
    retriable=True,
    outcome=Outcome.UNKNOWN,
    action="Check that etcd runs and has a majority; then try again.",
):
    """The server cannot reach etcd."""


class ShuttingDownError(
    HeadraceError,
    code=ErrorCode.SHUTTING_DOWN,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again at another server or when this one is back.",
):
    """The server is shutting down and did not accept the request."""


class TimedOutError(
    HeadraceError,
    code=ErrorCode.TIMED_OUT,
    status="DEADLINE_EXCEEDED",
    retriable=True,
    outcome=Outcome.UNKNOWN,
    action="Try again with a longer deadline; it may have taken effect.",
):
    """No response in time; the request may still take effect."""


class FencedBrokerError(
    HeadraceError,
    code=ErrorCode.FENCED_BROKER,
    status="UNAVAILABLE",
    retriable=True,
    action="Try again; the broker is registering again.",
):
    """The broker has lost its session and must register again."""


class ConflictError(
    HeadraceError,
    code=ErrorCode.CONFLICT,
    status="ABORTED",
    retriable=True,
    action="Read the current state and decide again; it was changed concurrently.",
):
    """A concurrent change came first. Read the current state, then decide."""


class UnknownGroupError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_GROUP,
    status="NOT_FOUND",
    action="Check the group id; `headrace group list` shows all groups.",
):
    """No such consumer group."""


class UnknownMemberError(
    HeadraceError,
    code=ErrorCode.UNKNOWN_MEMBER,
    status="FAILED_PRECONDITION",
    action="Release all partitions and join again.",
):
    """The group does not have this member, or its session is over. It owns nothing and may join again."""


class FencedMemberEpochError(
    HeadraceError,
    code=ErrorCode.FENCED_MEMBER_EPOCH,
    status="FAILED_PRECONDITION",
    action="Release all partitions and join again.",
):
    """The member sent an epoch that it was never assigned: it owns nothing and must join again."""


class FencedInstanceError(
    HeadraceError,
    code=ErrorCode.FENCED_INSTANCE,
    status="FAILED_PRECONDITION",
    action="Give each running consumer a group_instance_id of its own; stop the duplicate.",
    fatal=True,
):
    """Another member with the same `group_instance_id` has replaced this one."""


class NotOwnerError(
    HeadraceError,
    code=ErrorCode.NOT_OWNER,
    status="FAILED_PRECONDITION",
    action="Drop what was read of the partition; its owner reads it.",
):
    """The member does not own the partition, or was assigned it again since: its offset is not stored."""


class GroupNotEmptyError(
    HeadraceError,
    code=ErrorCode.GROUP_NOT_EMPTY,
    status="FAILED_PRECONDITION",
    action="Stop all members of the group first.",
):
    """The group has members, and only they may make this change."""


class GroupTooLargeError(
    HeadraceError,
    code=ErrorCode.GROUP_TOO_LARGE,
    status="RESOURCE_EXHAUSTED",
    action="Split the topics over several groups.",
):
    """The group has more members and partitions than fit into one key of etcd."""


class MetadataLimitError(
    HeadraceError,
    code=ErrorCode.METADATA_LIMIT,
    status="RESOURCE_EXHAUSTED",
    action="Delete groups and topics that are not needed, or let an administrator raise the limit.",
):
    """The cluster accepts no more groups, members, offsets or topics: a limit is reached, or etcd is nearly full."""


class InternalError(
    HeadraceError,
    code=ErrorCode.INTERNAL,
    status="INTERNAL",
    outcome=Outcome.UNKNOWN,
    action="Report it, with the server's log; it is a bug in headrace.",
):
    """A bug in headrace."""


class NotAuthorizedError(
    HeadraceError,
    code=ErrorCode.NOT_AUTHORIZED,
    status="PERMISSION_DENIED",
    action="Ask an administrator for a grant; `headrace can` says what is missing.",
):
    """The caller has no right to do this."""


class UnauthenticatedError(
    HeadraceError,
    code=ErrorCode.UNAUTHENTICATED,
    status="UNAUTHENTICATED",
    action="Set api_key_file, token_file or a client certificate.",
):
    """The caller is not known: it sent no proof of identity, or one that is not accepted, or its session has ended."""


class TransportError(HeadraceError):
    """The connection failed or the peer is unreachable, without a typed response. Never crosses the wire; reconnect."""
