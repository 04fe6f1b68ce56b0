from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOPIC_NAME: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PARTITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICATION_FACTOR: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_BATCH: _ClassVar[ErrorCode]
    ERROR_CODE_BATCH_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_CODEC: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TIMESTAMP: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_REQUIRED: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PARTITION: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_BROKER: _ClassVar[ErrorCode]
    ERROR_CODE_READ_ONLY_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_DIVERGED_LOG: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_LEADER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CONTROLLER: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_PRODUCER: _ClassVar[ErrorCode]
    ERROR_CODE_THROTTLED: _ClassVar[ErrorCode]
    ERROR_CODE_STORAGE_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_STORAGE_OFFLINE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_BROKERS: _ClassVar[ErrorCode]
    ERROR_CODE_METASTORE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_SHUTTING_DOWN: _ClassVar[ErrorCode]
    ERROR_CODE_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_BROKER: _ClassVar[ErrorCode]
    ERROR_CODE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_GROUP: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_MEMBER: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_MEMBER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_INSTANCE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_OWNER: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_METADATA_LIMIT: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_AUTHORIZED: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_NOT_APPLIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_REQUEST: ErrorCode
ERROR_CODE_INVALID_TOPIC_NAME: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_INVALID_PARTITIONS: ErrorCode
ERROR_CODE_INVALID_REPLICATION_FACTOR: ErrorCode
ERROR_CODE_CORRUPT_BATCH: ErrorCode
ERROR_CODE_BATCH_TOO_LARGE: ErrorCode
ERROR_CODE_UNSUPPORTED_CODEC: ErrorCode
ERROR_CODE_INVALID_TIMESTAMP: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_DEADLINE_REQUIRED: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_ID: ErrorCode
ERROR_CODE_UNKNOWN_PARTITION: ErrorCode
ERROR_CODE_TOPIC_ALREADY_EXISTS: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_UNKNOWN_BROKER: ErrorCode
ERROR_CODE_READ_ONLY_TOPIC: ErrorCode
ERROR_CODE_DIVERGED_LOG: ErrorCode
ERROR_CODE_NOT_LEADER: ErrorCode
ERROR_CODE_FENCED_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNKNOWN_LEADER_EPOCH: ErrorCode
ERROR_CODE_LEADER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode
ERROR_CODE_OFFSET_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_CONTROLLER: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER: ErrorCode
ERROR_CODE_FENCED_PRODUCER: ErrorCode
ERROR_CODE_THROTTLED: ErrorCode
ERROR_CODE_STORAGE_FULL: ErrorCode
ERROR_CODE_STORAGE_OFFLINE: ErrorCode
ERROR_CODE_NOT_ENOUGH_BROKERS: ErrorCode
ERROR_CODE_METASTORE_UNAVAILABLE: ErrorCode
ERROR_CODE_SHUTTING_DOWN: ErrorCode
ERROR_CODE_TIMED_OUT: ErrorCode
ERROR_CODE_FENCED_BROKER: ErrorCode
ERROR_CODE_CONFLICT: ErrorCode
ERROR_CODE_UNKNOWN_GROUP: ErrorCode
ERROR_CODE_UNKNOWN_MEMBER: ErrorCode
ERROR_CODE_FENCED_MEMBER_EPOCH: ErrorCode
ERROR_CODE_FENCED_INSTANCE: ErrorCode
ERROR_CODE_NOT_OWNER: ErrorCode
ERROR_CODE_GROUP_NOT_EMPTY: ErrorCode
ERROR_CODE_GROUP_TOO_LARGE: ErrorCode
ERROR_CODE_METADATA_LIMIT: ErrorCode
ERROR_CODE_NOT_AUTHORIZED: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_NOT_APPLIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_UNKNOWN: Outcome

class LeaderHint(_message.Message):
    __slots__ = ("leader_id", "leader_epoch", "address")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    leader_id: int
    leader_epoch: int
    address: str
    def __init__(self, leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "retriable", "outcome", "message", "action", "leader", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    retriable: bool
    outcome: Outcome
    message: str
    action: str
    leader: LeaderHint
    retry_after_ms: int
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., retriable: bool = ..., outcome: _Optional[_Union[Outcome, str]] = ..., message: _Optional[str] = ..., action: _Optional[str] = ..., leader: _Optional[_Union[LeaderHint, _Mapping]] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
