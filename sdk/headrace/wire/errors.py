"""Every error that crosses the wire, in one table: code, exception, gRPC status, retriable, fatal, outcome, what to do.

Servers raise these exceptions and turn them into an `ErrorDetail` inside an answer (`to_detail`) or into the
`grpc-status-details-bin` trailer of a failed call (`to_status_bytes`); clients turn both back into the same exceptions
(`from_detail`, `from_rpc_error`). `ErrorCode` and `Outcome` repeat the enums of `headrace/v1/errors.proto` number for
number, so that code below the RPC layer raises typed errors without protobuf or grpc; both are imported by the
functions that convert, when they are called.

An exception class of its own exists only where a caller acts differently. An outcome that nobody vouches for is
UNKNOWN: a record whose outcome is UNKNOWN may be read later (PROTOCOL H52).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headrace.wire.handshakes import explain_handshake

if TYPE_CHECKING:
    import grpc

    from headrace.v1 import errors_pb2

    GRPC_STATUS: Mapping[ErrorCode, grpc.StatusCode]

STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""The trailer that carries a serialised `headrace.v1.Status`, which has the layout of google.rpc.Status."""
REQUEST_ID_KEY = "headrace-request-id"
"""The metadata by which a client names an operation, the same for all its calls; a failed call's trailers repeat it."""


class ErrorCode(IntEnum):
    """What went wrong, by what the caller can do; the numbers of `ErrorCode` in errors.proto.

    UNSPECIFIED marks an error raised on this side of the wire, for which no code is defined.
    """

    UNSPECIFIED = 0
    INVALID_REQUEST = 1
    INVALID_TOPIC_NAME = 2
    INVALID_CONFIG = 3
    INVALID_PARTITIONS = 4
    INVALID_REPLICATION_FACTOR = 5
    CORRUPT_BATCH = 6
    BATCH_TOO_LARGE = 7
    UNSUPPORTED_CODEC = 8
    INVALID_TIMESTAMP = 9
    UNSUPPORTED_VERSION = 10
    DEADLINE_REQUIRED = 11
    UNKNOWN_TOPIC = 20
    UNKNOWN_TOPIC_ID = 21
    UNKNOWN_PARTITION = 22
    TOPIC_ALREADY_EXISTS = 23
    OFFSET_OUT_OF_RANGE = 24
    UNKNOWN_BROKER = 25
    NOT_LEADER = 30
    FENCED_LEADER_EPOCH = 31
    UNKNOWN_LEADER_EPOCH = 32
    LEADER_NOT_AVAILABLE = 33
    NOT_ENOUGH_REPLICAS = 34
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 35
    OFFSET_NOT_AVAILABLE = 36
    NOT_CONTROLLER = 37
    OUT_OF_ORDER_SEQUENCE = 40
    UNKNOWN_PRODUCER = 41
    FENCED_PRODUCER = 42
    THROTTLED = 50
    STORAGE_FULL = 51
    STORAGE_OFFLINE = 52
    NOT_ENOUGH_BROKERS = 53
    METASTORE_UNAVAILABLE = 54
    SHUTTING_DOWN = 55
    TIMED_OUT = 56
    FENCED_BROKER = 57
    CONFLICT = 58
    UNKNOWN_GROUP = 60
    UNKNOWN_MEMBER = 61
    FENCED_MEMBER_EPOCH = 62
    FENCED_INSTANCE = 63
    NOT_OWNER = 64
    GROUP_NOT_EMPTY = 65
    GROUP_TOO_LARGE = 66
    METADATA_LIMIT = 67
    NOT_AUTHORIZED = 70
    INTERNAL = 99


class Outcome(IntEnum):
    """Whether the request took effect; the numbers of `Outcome` in errors.proto. Only NOT_APPLIED is definite."""

    UNSPECIFIED = 0
    NOT_APPLIED = 1
    APPLIED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """Where to go instead, beside NOT_LEADER and the leader-epoch errors."""

    leader_id: int
    """The leader's broker id; -1 when there is none."""
    leader_epoch: int
    """The epoch of that leader; -1 when it is not known."""
    address: str = ""
    """`host:port` for clients; empty when it is not known."""


class HeadraceError(Exception):
    """The base of every error that headrace raises on purpose.

    What the constructor is not given comes from the row of the error's code in `ERRORS`; `code` itself from the class.

    Attributes:
        code: what went wrong.
        message: what is wrong, in one sentence.
        action: what to do about it, in one sentence; may be empty.
        outcome: whether the request took effect.
        retriable: the same request may succeed later, unchanged.
        fatal: the object that raised it is of no further use; make a new one.
        leader: where to go instead, or None.
        retry_after_ms: the least time to wait before the next try, in milliseconds.
        request_id: what the operation is called in the logs of client and servers; empty: no call was made.
    """

    default_code: ClassVar[ErrorCode] = ErrorCode.UNSPECIFIED

    def __init__(
        self,
        message: str = "",
        *,
        code: ErrorCode | None = None,
        outcome: Outcome | None = None,
        retriable: bool | None = None,
        fatal: bool | None = None,
        action: str | None = None,
        leader: LeaderHint | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = self.default_code if code is None else code
        row = ERRORS[self.code]
        self.message = message or self.code.name.lower().replace("_", " ")
        self.action = row.action if action is None else action
        self.outcome = row.outcome if outcome is None else outcome
        self.retriable = row.retriable if retriable is None else retriable
        self.fatal = row.fatal if fatal is None else fatal
        self.leader = leader
        self.retry_after_ms = retry_after_ms
        self.request_id = ""

    def __str__(self) -> str:
        end = "" if self.message.endswith((".", "?")) else "."
        text = f"{self.message}{end} {self.action}" if self.action else self.message
        return f"{text} [request {self.request_id}]" if self.request_id else text


class InvalidRequestError(HeadraceError):
    """The request can never succeed as it is: change it."""

    default_code = ErrorCode.INVALID_REQUEST


class InvalidTopicNameError(InvalidRequestError):
    """The string cannot name a topic."""

    default_code = ErrorCode.INVALID_TOPIC_NAME


class InvalidConfigError(InvalidRequestError):
    """A setting is unknown or its value is out of range; the message names the nearest known one or the range."""

    default_code = ErrorCode.INVALID_CONFIG


class InvalidPartitionsError(InvalidRequestError):
    """The number of partitions is out of range or would shrink the topic."""

    default_code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactorError(InvalidRequestError):
    """The replication factor is out of range or more than the cluster can give."""

    default_code = ErrorCode.INVALID_REPLICATION_FACTOR


class CorruptBatchError(InvalidRequestError):
    """A record batch that is not what its format says.

    Attributes:
        base_offset: the batch's base offset, or -1 where the header could not be trusted.
        next_offset: the offset behind the batch, from which a reader may go on, or -1 where it is not known.
        offset: the first offset that a reader wanted of it, or -1.
        batch: its bytes as a reader received them; empty where it was no reader.
        written_so: its checksums are right, so that every replica has it as it is.
    """

    default_code = ErrorCode.CORRUPT_BATCH

    def __init__(self, message: str = "", *, base_offset: int = -1, next_offset: int = -1, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.offset = -1
        self.batch = b""
        self.written_so = False


class BatchTooLargeError(InvalidRequestError):
    """A batch or message is larger than the limit that its receiver sets."""

    default_code = ErrorCode.BATCH_TOO_LARGE


class UnsupportedCodecError(InvalidRequestError):
    """A codec that this process does not know, or whose package is not installed; the message names the package."""

    default_code = ErrorCode.UNSUPPORTED_CODEC


class InvalidTimestampError(InvalidRequestError):
    """A record's timestamp lies further from the broker's clock than the topic allows."""

    default_code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedVersionError(HeadraceError):
    """The other side does not know this call or this version of the format."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


class DeadlineRequiredError(InvalidRequestError):
    """The call carries no deadline."""

    default_code = ErrorCode.DEADLINE_REQUIRED


class UnknownTopicError(HeadraceError):
    """No topic has this name."""

    default_code = ErrorCode.UNKNOWN_TOPIC


class UnknownTopicIdError(HeadraceError):
    """No topic has this id: refresh the metadata, never send again by name (the name may mean another topic now)."""

    default_code = ErrorCode.UNKNOWN_TOPIC_ID


class UnknownPartitionError(HeadraceError):
    """The topic has no such partition, or the server has not heard of it yet."""

    default_code = ErrorCode.UNKNOWN_PARTITION


class TopicAlreadyExistsError(HeadraceError):
    """The topic to be created is there already."""

    default_code = ErrorCode.TOPIC_ALREADY_EXISTS


class OffsetOutOfRangeError(HeadraceError):
    """The offset lies before the log's start or behind its end: choose a new position."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE


class UnknownBrokerError(HeadraceError):
    """No broker has this id."""

    default_code = ErrorCode.UNKNOWN_BROKER


class NotLeaderError(HeadraceError):
    """The broker does not lead the partition: follow `leader` or refresh the metadata."""

    default_code = ErrorCode.NOT_LEADER


class FencedLeaderEpochError(HeadraceError):
    """The caller's leader epoch is older than the partition's: refresh the metadata and validate positions."""

    default_code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(HeadraceError):
    """The caller's leader epoch is newer than the one the broker knows: the broker lags behind."""

    default_code = ErrorCode.UNKNOWN_LEADER_EPOCH


class LeaderNotAvailableError(HeadraceError):
    """The partition has no leader now."""

    default_code = ErrorCode.LEADER_NOT_AVAILABLE


class NotEnoughReplicasError(HeadraceError):
    """Fewer replicas are in sync than the topic demands; nothing was appended."""

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppendError(HeadraceError):
    """The batch was appended, then too few replicas stayed in sync to acknowledge it."""

    default_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class OffsetNotAvailableError(HeadraceError):
    """A new leader does not know its high watermark, or its log start, yet."""

    default_code = ErrorCode.OFFSET_NOT_AVAILABLE


class NotControllerError(HeadraceError):
    """The coordinator is not the controller: ask another one."""

    default_code = ErrorCode.NOT_CONTROLLER


class OutOfOrderSequenceError(HeadraceError):
    """A sequence before this one is missing; nothing was appended."""

    default_code = ErrorCode.OUT_OF_ORDER_SEQUENCE


class UnknownProducerError(HeadraceError):
    """The broker has forgotten this producer; bump the epoch once nothing is in flight."""

    default_code = ErrorCode.UNKNOWN_PRODUCER


class FencedProducerError(HeadraceError):
    """A newer epoch of this producer is at work."""

    default_code = ErrorCode.FENCED_PRODUCER


class ThrottledError(HeadraceError):
    """The server has as much in flight as it takes, or a quota is used up: wait `retry_after_ms`."""

    default_code = ErrorCode.THROTTLED


class StorageFullError(HeadraceError):
    """The broker's disk is full; reads go on."""

    default_code = ErrorCode.STORAGE_FULL


class StorageOfflineError(HeadraceError):
    """The replica's storage has failed or is corrupt; the broker serves it no more."""

    default_code = ErrorCode.STORAGE_OFFLINE


class NotEnoughBrokersError(HeadraceError):
    """Fewer brokers live than the request needs."""

    default_code = ErrorCode.NOT_ENOUGH_BROKERS


class MetastoreUnavailableError(HeadraceError):
    """The server cannot reach etcd."""

    default_code = ErrorCode.METASTORE_UNAVAILABLE


class ShuttingDownError(HeadraceError):
    """The server is stopping and took nothing."""

    default_code = ErrorCode.SHUTTING_DOWN


class TimedOutError(HeadraceError):
    """No answer in time; the request may still take effect."""

    default_code = ErrorCode.TIMED_OUT


class FencedBrokerError(HeadraceError):
    """The broker has lost its session and must register again."""

    default_code = ErrorCode.FENCED_BROKER


class ConflictError(HeadraceError):
    """A concurrent change came first: read the current state, then decide."""

    default_code = ErrorCode.CONFLICT


class UnknownGroupError(HeadraceError):
    """No such consumer group."""

    default_code = ErrorCode.UNKNOWN_GROUP


class UnknownMemberError(HeadraceError):
    """The group does not have this member, or no more: its session is over. It owns nothing and may join again."""

    default_code = ErrorCode.UNKNOWN_MEMBER


class FencedMemberEpochError(HeadraceError):
    """The member names an epoch that it was never given: it owns nothing and must join again."""

    default_code = ErrorCode.FENCED_MEMBER_EPOCH


class FencedInstanceError(HeadraceError):
    """Another member with the same `group_instance_id` has taken this one's place."""

    default_code = ErrorCode.FENCED_INSTANCE


class NotOwnerError(HeadraceError):
    """The member does not own the partition, or owns it again since: its offset is not stored."""

    default_code = ErrorCode.NOT_OWNER


class GroupNotEmptyError(HeadraceError):
    """The group has members, and only they may change what is asked to be changed."""

    default_code = ErrorCode.GROUP_NOT_EMPTY


class GroupTooLargeError(HeadraceError):
    """The group has more members and partitions than fit into one key of etcd."""

    default_code = ErrorCode.GROUP_TOO_LARGE


class MetadataLimitError(HeadraceError):
    """The cluster takes no further groups, members, offsets or topics: a limit is reached, or etcd is nearly full."""

    default_code = ErrorCode.METADATA_LIMIT


class InternalError(HeadraceError):
    """A bug in headrace."""

    default_code = ErrorCode.INTERNAL


class NotAuthorizedError(HeadraceError):
    """The server knows who calls, by certificate or listener, and does not let them do this."""

    default_code = ErrorCode.NOT_AUTHORIZED


class TransportError(HeadraceError):
    """The connection failed or the peer is away: no typed answer came. Never crosses the wire; reconnect."""


class ErrorRow(NamedTuple):
    """What belongs to one code."""

    exception: type[HeadraceError]
    grpc_status: str
    """The name of a `grpc.StatusCode`."""
    retriable: bool
    outcome: Outcome
    action: str
    fatal: bool = False


_NO, _MAYBE = Outcome.NOT_APPLIED, Outcome.UNKNOWN
_REFRESH = "Refresh the metadata and try again."

ERRORS: Mapping[ErrorCode, ErrorRow] = {
    ErrorCode.UNSPECIFIED: ErrorRow(HeadraceError, "UNKNOWN", False, _MAYBE, ""),
    ErrorCode.INVALID_REQUEST: ErrorRow(
        InvalidRequestError, "INVALID_ARGUMENT", False, _NO, "Correct the request; it can never succeed as it is."
    ),
    ErrorCode.INVALID_TOPIC_NAME: ErrorRow(
        InvalidTopicNameError,
        "INVALID_ARGUMENT",
        False,
        _NO,
        "Use 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'.",
    ),
    ErrorCode.INVALID_CONFIG: ErrorRow(
        InvalidConfigError,
        "INVALID_ARGUMENT",
        False,
        _NO,
        "Correct the setting; DescribeConfigs lists names and ranges.",
    ),
    ErrorCode.INVALID_PARTITIONS: ErrorRow(
        InvalidPartitionsError, "INVALID_ARGUMENT", False, _NO, "Ask for at least one partition and never for fewer."
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: ErrorRow(
        InvalidReplicationFactorError,
        "INVALID_ARGUMENT",
        False,
        _NO,
        "Ask for at least one replica and no more than there are brokers.",
    ),
    ErrorCode.CORRUPT_BATCH: ErrorRow(
        CorruptBatchError,
        "INVALID_ARGUMENT",
        False,
        _NO,
        "A producer encodes the batch anew; a reader may go on at the next good offset.",
    ),
    ErrorCode.BATCH_TOO_LARGE: ErrorRow(
        BatchTooLargeError, "INVALID_ARGUMENT", False, _NO, "Send smaller batches or raise the topic's max_batch_bytes."
    ),
    ErrorCode.UNSUPPORTED_CODEC: ErrorRow(
        UnsupportedCodecError, "INVALID_ARGUMENT", False, _NO, "Use none, lz4, zstd or gzip, and install its package."
    ),
    ErrorCode.INVALID_TIMESTAMP: ErrorRow(
        InvalidTimestampError,
        "INVALID_ARGUMENT",
        False,
        _NO,
        "Set the clock, or widen the topic's timestamp_before_max_ms or timestamp_after_max_ms.",
    ),
    ErrorCode.UNSUPPORTED_VERSION: ErrorRow(
        UnsupportedVersionError, "UNIMPLEMENTED", False, _NO, "Upgrade the older of the two sides."
    ),
    ErrorCode.DEADLINE_REQUIRED: ErrorRow(
        DeadlineRequiredError, "INVALID_ARGUMENT", False, _NO, "Give every call a deadline (timeout=... in gRPC)."
    ),
    ErrorCode.UNKNOWN_TOPIC: ErrorRow(
        UnknownTopicError, "NOT_FOUND", False, _NO, "Create the topic, or check its name."
    ),
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorRow(
        UnknownTopicIdError,
        "NOT_FOUND",
        True,
        _NO,
        "Refresh the metadata; where the topic has another id it was created anew, so do not send again by name.",
    ),
    ErrorCode.UNKNOWN_PARTITION: ErrorRow(
        UnknownPartitionError, "NOT_FOUND", True, _NO, "Refresh the metadata and choose one of the topic's partitions."
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorRow(
        TopicAlreadyExistsError, "ALREADY_EXISTS", False, _NO, "Use the topic that is there, or choose another name."
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: ErrorRow(
        OffsetOutOfRangeError,
        "OUT_OF_RANGE",
        False,
        _NO,
        "Go on from the log's start or end, as auto_offset_reset says, or seek.",
    ),
    ErrorCode.UNKNOWN_BROKER: ErrorRow(
        UnknownBrokerError, "NOT_FOUND", False, _NO, "Choose one of the cluster's brokers."
    ),
    ErrorCode.NOT_LEADER: ErrorRow(NotLeaderError, "FAILED_PRECONDITION", True, _NO, _REFRESH),
    ErrorCode.FENCED_LEADER_EPOCH: ErrorRow(FencedLeaderEpochError, "FAILED_PRECONDITION", True, _NO, _REFRESH),
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorRow(
        UnknownLeaderEpochError, "UNAVAILABLE", True, _NO, "Try again; the broker has not seen the change yet."
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: ErrorRow(
        LeaderNotAvailableError, "UNAVAILABLE", True, _NO, "Try again; where it lasts, bring a replica's broker back."
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorRow(
        NotEnoughReplicasError, "UNAVAILABLE", True, _NO, "Try again; where it lasts, bring the missing brokers back."
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorRow(
        NotEnoughReplicasAfterAppendError,
        "UNAVAILABLE",
        True,
        _MAYBE,
        "Send the same batch again with its producer id and sequence; without them it may be stored twice.",
    ),
    ErrorCode.OFFSET_NOT_AVAILABLE: ErrorRow(
        OffsetNotAvailableError,
        "UNAVAILABLE",
        True,
        _NO,
        "Try again; the new leader waits for its followers to say where the log begins and ends.",
    ),
    ErrorCode.NOT_CONTROLLER: ErrorRow(
        NotControllerError, "FAILED_PRECONDITION", True, _NO, "Ask the controller named, or another coordinator."
    ),
    ErrorCode.OUT_OF_ORDER_SEQUENCE: ErrorRow(
        OutOfOrderSequenceError,
        "FAILED_PRECONDITION",
        True,
        _NO,
        "Send the batches before this one first, then this one unchanged.",
    ),
    ErrorCode.UNKNOWN_PRODUCER: ErrorRow(
        UnknownProducerError,
        "FAILED_PRECONDITION",
        False,
        _NO,
        "Resolve what is in flight, then ask for a new producer epoch and start again at sequence 0.",
    ),
    ErrorCode.FENCED_PRODUCER: ErrorRow(
        FencedProducerError,
        "FAILED_PRECONDITION",
        False,
        _NO,
        "Close this producer; another one with its id has taken over.",
        fatal=True,
    ),
    ErrorCode.THROTTLED: ErrorRow(
        ThrottledError, "RESOURCE_EXHAUSTED", True, _NO, "Wait for retry_after_ms, then try again."
    ),
    ErrorCode.STORAGE_FULL: ErrorRow(
        StorageFullError,
        "RESOURCE_EXHAUSTED",
        True,
        _NO,
        "Free disk space or shorten retention; then it goes on by itself.",
    ),
    ErrorCode.STORAGE_OFFLINE: ErrorRow(
        StorageOfflineError,
        "UNAVAILABLE",
        True,
        _NO,
        "Look at the broker's log: its disk has failed or a file is corrupt.",
    ),
    ErrorCode.NOT_ENOUGH_BROKERS: ErrorRow(
        NotEnoughBrokersError, "UNAVAILABLE", True, _NO, "Start more brokers or ask for fewer replicas."
    ),
    ErrorCode.METASTORE_UNAVAILABLE: ErrorRow(
        MetastoreUnavailableError,
        "UNAVAILABLE",
        True,
        _MAYBE,
        "Check that etcd runs and has a majority; then try again.",
    ),
    ErrorCode.SHUTTING_DOWN: ErrorRow(
        ShuttingDownError, "UNAVAILABLE", True, _NO, "Try again at another server or when this one is back."
    ),
    ErrorCode.TIMED_OUT: ErrorRow(
        TimedOutError, "DEADLINE_EXCEEDED", True, _MAYBE, "Try again with a longer deadline; it may have taken effect."
    ),
    ErrorCode.FENCED_BROKER: ErrorRow(
        FencedBrokerError, "UNAVAILABLE", True, _NO, "Try again; the broker is registering anew."
    ),
    ErrorCode.CONFLICT: ErrorRow(
        ConflictError, "ABORTED", True, _NO, "Read the current state and decide again; it was changed concurrently."
    ),
    ErrorCode.UNKNOWN_GROUP: ErrorRow(
        UnknownGroupError, "NOT_FOUND", False, _NO, "Check the group id; `headrace group list` shows all groups."
    ),
    ErrorCode.UNKNOWN_MEMBER: ErrorRow(
        UnknownMemberError, "FAILED_PRECONDITION", False, _NO, "Give up all partitions and join again."
    ),
    ErrorCode.FENCED_MEMBER_EPOCH: ErrorRow(
        FencedMemberEpochError, "FAILED_PRECONDITION", False, _NO, "Give up all partitions and join again."
    ),
    ErrorCode.FENCED_INSTANCE: ErrorRow(
        FencedInstanceError,
        "FAILED_PRECONDITION",
        False,
        _NO,
        "Give each running consumer a group_instance_id of its own; stop the one that is too many.",
        fatal=True,
    ),
    ErrorCode.NOT_OWNER: ErrorRow(
        NotOwnerError, "FAILED_PRECONDITION", False, _NO, "Drop what was read of the partition; its owner reads it."
    ),
    ErrorCode.GROUP_NOT_EMPTY: ErrorRow(
        GroupNotEmptyError, "FAILED_PRECONDITION", False, _NO, "Stop all members of the group first."
    ),
    ErrorCode.GROUP_TOO_LARGE: ErrorRow(
        GroupTooLargeError, "RESOURCE_EXHAUSTED", False, _NO, "Split the topics over several groups."
    ),
    ErrorCode.METADATA_LIMIT: ErrorRow(
        MetadataLimitError,
        "RESOURCE_EXHAUSTED",
        False,
        _NO,
        "Delete groups and topics that are not needed, or let an administrator raise the limit.",
    ),
    ErrorCode.NOT_AUTHORIZED: ErrorRow(
        NotAuthorizedError,
        "PERMISSION_DENIED",
        False,
        _NO,
        "Show a certificate that is allowed to do it, or let an administrator allow it.",
    ),
    ErrorCode.INTERNAL: ErrorRow(
        InternalError, "INTERNAL", False, _MAYBE, "Report it, with the server's log; it is a bug in headrace."
    ),
}
"""Every code of errors.proto. NOT_APPLIED by default means: refused before it acts. A raiser may say otherwise."""


def __getattr__(name: str) -> Mapping[ErrorCode, grpc.StatusCode]:
    """Build `GRPC_STATUS` when it is first asked for, so that importing this module does not import grpc."""
    if name != "GRPC_STATUS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import grpc

    statuses = {code: grpc.StatusCode[row.grpc_status] for code, row in ERRORS.items()}
    globals()[name] = statuses
    return statuses


def to_detail(error: HeadraceError) -> errors_pb2.ErrorDetail:
    """Return the message that carries `error` inside an answer. An error without a code of its own goes as INTERNAL."""
    from headrace.v1 import errors_pb2

    detail = errors_pb2.ErrorDetail(
        code=int(error.code or ErrorCode.INTERNAL),  # type: ignore[arg-type]
        retriable=error.retriable,
        outcome=int(error.outcome),  # type: ignore[arg-type]
        message=error.message,
        action=error.action,
        retry_after_ms=error.retry_after_ms,
    )
    if error.leader is not None:
        detail.leader.leader_id = error.leader.leader_id
        detail.leader.leader_epoch = error.leader.leader_epoch
        detail.leader.address = error.leader.address
    return detail


def from_detail(detail: errors_pb2.ErrorDetail) -> HeadraceError:
    """Return the exception that `detail` carries; not raised.

    A code that this version does not know becomes `InternalError` with the sender's retriable, outcome and action; an
    outcome that the sender left out is UNKNOWN.
    """
    number = int(detail.code)
    known = number in ErrorCode.__members__.values() and number != ErrorCode.UNSPECIFIED
    code = ErrorCode(number) if known else ErrorCode.INTERNAL
    outcome = int(detail.outcome)
    leader = detail.leader
    return ERRORS[code].exception(
        detail.message if known else f"{detail.message or 'an error'} (code {number}, unknown to this version)",
        code=code,
        outcome=Outcome(outcome) if outcome in {Outcome.NOT_APPLIED, Outcome.APPLIED} else Outcome.UNKNOWN,
        retriable=detail.retriable,
        action=detail.action or None,
        leader=LeaderHint(leader.leader_id, leader.leader_epoch, leader.address) if detail.HasField("leader") else None,
        retry_after_ms=max(0, detail.retry_after_ms),
    )


def to_status_bytes(error: HeadraceError) -> bytes:
    """Return the serialised `headrace.v1.Status` for the `grpc-status-details-bin` trailer of a failed call."""
    import grpc

    from headrace.v1 import errors_pb2

    number, _ = grpc.StatusCode[ERRORS[error.code].grpc_status].value
    status = errors_pb2.Status(code=number, message=str(error))
    status.details.add().Pack(to_detail(error))
    return status.SerializeToString()


_UNTYPED: Mapping[str, ErrorCode] = {
    "CANCELLED": ErrorCode.TIMED_OUT,
    "DEADLINE_EXCEEDED": ErrorCode.TIMED_OUT,
    "INVALID_ARGUMENT": ErrorCode.INVALID_REQUEST,
    "FAILED_PRECONDITION": ErrorCode.INVALID_REQUEST,
    "OUT_OF_RANGE": ErrorCode.INVALID_REQUEST,
    "UNAUTHENTICATED": ErrorCode.INVALID_REQUEST,
    "PERMISSION_DENIED": ErrorCode.INVALID_REQUEST,
    "UNIMPLEMENTED": ErrorCode.UNSUPPORTED_VERSION,
    "RESOURCE_EXHAUSTED": ErrorCode.THROTTLED,
    "ABORTED": ErrorCode.CONFLICT,
}
"""The code for a gRPC status without a typed detail; UNAVAILABLE becomes TransportError, others INTERNAL."""


def from_rpc_error(error: grpc.RpcError) -> HeadraceError:
    """Return the exception for a failed call, sync or aio; not raised.

    The typed detail where the server sent one. Otherwise by the gRPC status, and then the outcome is UNKNOWN, because
    a call that broke off may have been carried out.
    """
    detail = _typed_detail(error)
    if detail is not None:
        return from_detail(detail)
    status: Any = error.code() if hasattr(error, "code") else None
    name = "UNKNOWN" if status is None else status.name
    said = (error.details() if hasattr(error, "details") else "") or "no details"
    message = f"the call failed with gRPC status {name}: {said}"
    if name == "UNAVAILABLE":
        explained = explain_handshake(said)
        if explained is not None:
            return TransportError(
                explained.message, outcome=Outcome.NOT_APPLIED, retriable=True, action=explained.action
            )
        return TransportError(message, outcome=Outcome.UNKNOWN, retriable=True, action="Try again or elsewhere.")
    if name == "RESOURCE_EXHAUSTED" and "message larger than max" in said:
        return BatchTooLargeError(message, outcome=Outcome.UNKNOWN)
    code = _UNTYPED.get(name, ErrorCode.INTERNAL)
    retriable = ERRORS[code].retriable and name != "CANCELLED"
    return ERRORS[code].exception(message, code=code, outcome=Outcome.UNKNOWN, retriable=retriable)


def _typed_detail(error: grpc.RpcError) -> errors_pb2.ErrorDetail | None:
    """Find the `ErrorDetail` in the trailers of a failed call; None where there is none that can be read."""
    from google.protobuf.message import DecodeError

    from headrace.v1 import errors_pb2

    trailers: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key != STATUS_DETAILS_KEY:
            continue
        detail = errors_pb2.ErrorDetail()
        try:
            status = errors_pb2.Status.FromString(value)
            if any(packed.Unpack(detail) for packed in status.details):
                return detail
        except DecodeError:
            return None  # A proxy's own trailer: the gRPC status still says what happened.
    return None
