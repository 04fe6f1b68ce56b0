"""Base of all errors: codes, outcomes, and the table that the classes of `catalogue` fill on their definition.

`ErrorCode` and `Outcome` repeat the enums of `headrace/v1/errors.proto` with the same numbers, so that code below the
RPC layer raises typed errors without protobuf or grpc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple


class ErrorCode(IntEnum):
    """Code of an error, by the caller's next step; the numbers of `ErrorCode` in errors.proto.

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
    READ_ONLY_TOPIC = 26
    DIVERGED_LOG = 27
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
    UNAUTHENTICATED = 71
    INTERNAL = 99


class Outcome(IntEnum):
    """Whether the request took effect; the numbers of `Outcome` in errors.proto. Only NOT_APPLIED is definite."""

    UNSPECIFIED = 0
    NOT_APPLIED = 1
    APPLIED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """Destination to use instead, with NOT_LEADER and the leader-epoch errors."""

    leader_id: int
    """Broker id of the leader; -1 if there is none."""
    leader_epoch: int
    """Epoch of that leader; -1 if it is unknown."""
    address: str = ""
    """`host:port` for clients; empty if it is unknown."""


class ErrorRow(NamedTuple):
    """Class of a code, and the defaults of its errors."""

    exception: type[HeadraceError]
    grpc_status: str
    """Name of a `grpc.StatusCode`."""
    retriable: bool
    outcome: Outcome
    action: str
    fatal: bool = False


_ROWS: dict[ErrorCode, ErrorRow] = {}
ERRORS: Mapping[ErrorCode, ErrorRow] = _ROWS
"""Every code of errors.proto. The default NOT_APPLIED means refused before any effect; the raising code may differ."""


class HeadraceError(Exception):
    """Base of every error that headrace raises on purpose.

    A class with its own `code` adds a row to `ERRORS`, which has the defaults of the constructor's arguments.

    Attributes:
        code: code of the error.
        message: description of the error, in one sentence.
        action: next step, in one sentence; may be empty.
        outcome: whether the request took effect.
        retriable: whether the same request may succeed later, unchanged.
        fatal: whether the object that raised it cannot be used any more; create a new one.
        leader: destination to use instead, or `None`.
        retry_after_ms: minimum time before the next try, in milliseconds.
        request_id: id of the operation in the logs of client and servers; empty if no call was made.
    """

    default_code: ClassVar[ErrorCode] = ErrorCode.UNSPECIFIED

    def __init_subclass__(
        cls,
        code: ErrorCode | None = None,
        status: str = "",
        retriable: bool = False,
        outcome: Outcome = Outcome.NOT_APPLIED,
        action: str = "",
        fatal: bool = False,
        **others: Any,
    ) -> None:
        """Register the class for its code, with the fields of `ErrorRow`."""
        super().__init_subclass__(**others)
        if code is not None:
            assert code not in _ROWS, f"{code.name} has a class already"
            cls.default_code = code
            _ROWS[code] = ErrorRow(cls, status, retriable, outcome, action, fatal)

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes, since the constructors of subclasses differ."""
        return _restore, (type(self), self.args, self.__dict__)

    def __copy__(self) -> HeadraceError:
        """Return an error for another call: each adds its traceback and its request id."""
        error = _restore(type(self), self.args, self.__dict__)
        error.__cause__ = self.__cause__
        return error

    @property
    def text(self) -> str:
        """What happened, and what to do."""
        end = "" if self.message.endswith((".", "?")) else "."
        return f"{self.message}{end} {self.action}" if self.action else self.message

    def __str__(self) -> str:
        return f"{self.text} [request {self.request_id}]" if self.request_id else self.text


def _restore(error_class: type[HeadraceError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HeadraceError:
    """Return a pickled error."""
    error = error_class.__new__(error_class, *args)
    error.__dict__.update(attributes)
    return error


_ROWS[ErrorCode.UNSPECIFIED] = ErrorRow(HeadraceError, "UNKNOWN", False, Outcome.UNKNOWN, "")
