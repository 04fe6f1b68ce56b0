from headrace.v1 import broker_pb2 as _broker_pb2
from headrace.v1 import topics_pb2 as _topics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Consistency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSISTENCY_UNSPECIFIED: _ClassVar[Consistency]
    CONSISTENCY_LEADER: _ClassVar[Consistency]
    CONSISTENCY_REPLICA: _ClassVar[Consistency]
CONSISTENCY_UNSPECIFIED: Consistency
CONSISTENCY_LEADER: Consistency
CONSISTENCY_REPLICA: Consistency

class TableRead(_message.Message):
    __slots__ = ("table", "partition", "consistency", "min_offset", "timeout_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table: _topics_pb2.TopicRef
    partition: int
    consistency: Consistency
    min_offset: int
    timeout_ms: int
    def __init__(self, table: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partition: _Optional[int] = ..., consistency: _Optional[_Union[Consistency, str]] = ..., min_offset: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ColumnSlice(_message.Message):
    __slots__ = ("names", "start", "end", "limit")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[bytes]
    start: bytes
    end: bytes
    limit: int
    def __init__(self, names: _Optional[_Iterable[bytes]] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class TableColumn(_message.Message):
    __slots__ = ("name", "value", "version", "timestamp_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    version: int
    timestamp_ms: int
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ..., version: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class TableRow(_message.Message):
    __slots__ = ("key", "columns", "version", "next_column")
    KEY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_COLUMN_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    columns: _containers.RepeatedCompositeFieldContainer[TableColumn]
    version: int
    next_column: bytes
    def __init__(self, key: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[TableColumn, _Mapping]]] = ..., version: _Optional[int] = ..., next_column: _Optional[bytes] = ...) -> None: ...

class GetRowsRequest(_message.Message):
    __slots__ = ("read", "keys", "columns")
    READ_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    read: TableRead
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    columns: ColumnSlice
    def __init__(self, read: _Optional[_Union[TableRead, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., columns: _Optional[_Union[ColumnSlice, _Mapping]] = ...) -> None: ...

class GetRowsResponse(_message.Message):
    __slots__ = ("rows", "as_of_offset")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_OFFSET_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[TableRow]
    as_of_offset: int
    def __init__(self, rows: _Optional[_Iterable[_Union[TableRow, _Mapping]]] = ..., as_of_offset: _Optional[int] = ...) -> None: ...

class ScanRowsRequest(_message.Message):
    __slots__ = ("read", "start", "end", "prefix", "columns", "limit")
    READ_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    read: TableRead
    start: bytes
    end: bytes
    prefix: bytes
    columns: ColumnSlice
    limit: int
    def __init__(self, read: _Optional[_Union[TableRead, _Mapping]] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., prefix: _Optional[bytes] = ..., columns: _Optional[_Union[ColumnSlice, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class ScanRowsResponse(_message.Message):
    __slots__ = ("rows", "next_key", "as_of_offset")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_KEY_FIELD_NUMBER: _ClassVar[int]
    AS_OF_OFFSET_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[TableRow]
    next_key: bytes
    as_of_offset: int
    def __init__(self, rows: _Optional[_Iterable[_Union[TableRow, _Mapping]]] = ..., next_key: _Optional[bytes] = ..., as_of_offset: _Optional[int] = ...) -> None: ...

class CountRowsRequest(_message.Message):
    __slots__ = ("read",)
    READ_FIELD_NUMBER: _ClassVar[int]
    read: TableRead
    def __init__(self, read: _Optional[_Union[TableRead, _Mapping]] = ...) -> None: ...

class CountRowsResponse(_message.Message):
    __slots__ = ("rows", "columns", "as_of_offset", "state_bytes", "log_end_offset")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    as_of_offset: int
    state_bytes: int
    log_end_offset: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., as_of_offset: _Optional[int] = ..., state_bytes: _Optional[int] = ..., log_end_offset: _Optional[int] = ...) -> None: ...

class WriteColumn(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class WriteRowRequest(_message.Message):
    __slots__ = ("table", "partition", "key", "columns", "delete_row", "if_version", "ttl_ms", "producer", "timeout_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DELETE_ROW_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table: _topics_pb2.TopicRef
    partition: int
    key: bytes
    columns: _containers.RepeatedCompositeFieldContainer[WriteColumn]
    delete_row: bool
    if_version: int
    ttl_ms: int
    producer: _broker_pb2.ProducerIdentity
    timeout_ms: int
    def __init__(self, table: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partition: _Optional[int] = ..., key: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[WriteColumn, _Mapping]]] = ..., delete_row: bool = ..., if_version: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., producer: _Optional[_Union[_broker_pb2.ProducerIdentity, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class WriteRowResponse(_message.Message):
    __slots__ = ("applied", "version", "records")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    version: int
    records: int
    def __init__(self, applied: bool = ..., version: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class PurgeRowsRequest(_message.Message):
    __slots__ = ("table", "partition", "keys", "prefix", "deleted", "before_offset", "timeout_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table: _topics_pb2.TopicRef
    partition: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    prefix: bytes
    deleted: bool
    before_offset: int
    timeout_ms: int
    def __init__(self, table: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partition: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., prefix: _Optional[bytes] = ..., deleted: bool = ..., before_offset: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class PurgeRowsResponse(_message.Message):
    __slots__ = ("broker_id", "done", "removed_records", "read_bytes")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    done: bool
    removed_records: int
    read_bytes: int
    def __init__(self, broker_id: _Optional[int] = ..., done: bool = ..., removed_records: _Optional[int] = ..., read_bytes: _Optional[int] = ...) -> None: ...
