from headrace.v1 import cluster_pb2 as _cluster_pb2
from headrace.v1 import errors_pb2 as _errors_pb2
from headrace.v1 import topics_pb2 as _topics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_NONE: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]

class OffsetSpec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFSET_SPEC_UNSPECIFIED: _ClassVar[OffsetSpec]
    OFFSET_SPEC_EARLIEST: _ClassVar[OffsetSpec]
    OFFSET_SPEC_LATEST: _ClassVar[OffsetSpec]
    OFFSET_SPEC_TIMESTAMP: _ClassVar[OffsetSpec]
    OFFSET_SPEC_APPEND_TIMESTAMP: _ClassVar[OffsetSpec]
    OFFSET_SPEC_RECORD: _ClassVar[OffsetSpec]
    OFFSET_SPEC_PRODUCER: _ClassVar[OffsetSpec]
    OFFSET_SPEC_PRODUCER_FAMILY: _ClassVar[OffsetSpec]
ACKS_UNSPECIFIED: Acks
ACKS_NONE: Acks
ACKS_LEADER: Acks
ACKS_ALL: Acks
OFFSET_SPEC_UNSPECIFIED: OffsetSpec
OFFSET_SPEC_EARLIEST: OffsetSpec
OFFSET_SPEC_LATEST: OffsetSpec
OFFSET_SPEC_TIMESTAMP: OffsetSpec
OFFSET_SPEC_APPEND_TIMESTAMP: OffsetSpec
OFFSET_SPEC_RECORD: OffsetSpec
OFFSET_SPEC_PRODUCER: OffsetSpec
OFFSET_SPEC_PRODUCER_FAMILY: OffsetSpec

class ProduceRequest(_message.Message):
    __slots__ = ("client_id", "acks", "timeout_ms", "topics", "as_copies")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AS_COPIES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    acks: Acks
    timeout_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicProduce]
    as_copies: bool
    def __init__(self, client_id: _Optional[str] = ..., acks: _Optional[_Union[Acks, str]] = ..., timeout_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicProduce, _Mapping]]] = ..., as_copies: bool = ...) -> None: ...

class TopicProduce(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProduce]
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionProduce, _Mapping]]] = ...) -> None: ...

class PartitionProduce(_message.Message):
    __slots__ = ("partition", "leader_epoch", "batches", "records", "producer", "batch_sizes", "deletions_end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader_epoch: int
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    records: _containers.RepeatedCompositeFieldContainer[_topics_pb2.Record]
    producer: ProducerIdentity
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    deletions_end: int
    def __init__(self, partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., batches: _Optional[_Iterable[bytes]] = ..., records: _Optional[_Iterable[_Union[_topics_pb2.Record, _Mapping]]] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., deletions_end: _Optional[int] = ...) -> None: ...

class ProducerIdentity(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "base_sequence")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    base_sequence: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., base_sequence: _Optional[int] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("topics", "throttle_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicProduceResult]
    throttle_ms: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicProduceResult, _Mapping]]] = ..., throttle_ms: _Optional[int] = ...) -> None: ...

class TopicProduceResult(_message.Message):
    __slots__ = ("name", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProduceResult]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionProduceResult, _Mapping]]] = ...) -> None: ...

class PartitionProduceResult(_message.Message):
    __slots__ = ("partition", "base_offsets", "append_timestamp_ms", "log_start_offset", "leader_epoch", "error", "repeated_batches", "log_end_offset", "log_end_crc")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REPEATED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_CRC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offsets: _containers.RepeatedScalarFieldContainer[int]
    append_timestamp_ms: int
    log_start_offset: int
    leader_epoch: int
    error: _errors_pb2.ErrorDetail
    repeated_batches: bool
    log_end_offset: int
    log_end_crc: int
    def __init__(self, partition: _Optional[int] = ..., base_offsets: _Optional[_Iterable[int]] = ..., append_timestamp_ms: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., repeated_batches: bool = ..., log_end_offset: _Optional[int] = ..., log_end_crc: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("client_id", "max_wait_ms", "min_bytes", "max_bytes", "topics", "as_records", "rack", "data_center")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AS_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    DATA_CENTER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicFetch]
    as_records: bool
    rack: str
    data_center: str
    def __init__(self, client_id: _Optional[str] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicFetch, _Mapping]]] = ..., as_records: bool = ..., rack: _Optional[str] = ..., data_center: _Optional[str] = ...) -> None: ...

class TopicFetch(_message.Message):
    __slots__ = ("topic", "partitions", "selection")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionFetch]
    selection: ColumnSelection
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionFetch, _Mapping]]] = ..., selection: _Optional[_Union[ColumnSelection, _Mapping]] = ...) -> None: ...

class ColumnSelection(_message.Message):
    __slots__ = ("column_ids", "rest", "ranges")
    COLUMN_IDS_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    column_ids: _containers.RepeatedScalarFieldContainer[int]
    rest: bool
    ranges: _containers.RepeatedCompositeFieldContainer[ColumnRange]
    def __init__(self, column_ids: _Optional[_Iterable[int]] = ..., rest: bool = ..., ranges: _Optional[_Iterable[_Union[ColumnRange, _Mapping]]] = ...) -> None: ...

class ColumnRange(_message.Message):
    __slots__ = ("column_id", "bounds", "minimum", "maximum")
    COLUMN_ID_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    column_id: int
    bounds: int
    minimum: bytes
    maximum: bytes
    def __init__(self, column_id: _Optional[int] = ..., bounds: _Optional[int] = ..., minimum: _Optional[bytes] = ..., maximum: _Optional[bytes] = ...) -> None: ...

class PartitionFetch(_message.Message):
    __slots__ = ("partition", "offset", "max_bytes", "leader_epoch", "last_epoch", "corruption_detected")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CORRUPTION_DETECTED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int
    corruption_detected: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., last_epoch: _Optional[int] = ..., corruption_detected: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("topics", "throttle_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicFetchResult]
    throttle_ms: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicFetchResult, _Mapping]]] = ..., throttle_ms: _Optional[int] = ...) -> None: ...

class TopicFetchResult(_message.Message):
    __slots__ = ("name", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionFetchResult]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionFetchResult, _Mapping]]] = ...) -> None: ...

class PartitionFetchResult(_message.Message):
    __slots__ = ("partition", "batches", "records", "high_watermark", "log_start_offset", "leader_epoch", "preferred_replica", "error", "next_offset", "diverged", "batches_size", "last_epoch", "deletions_end", "chain_crc")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_REPLICA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_END_FIELD_NUMBER: _ClassVar[int]
    CHAIN_CRC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    batches: bytes
    records: _containers.RepeatedCompositeFieldContainer[_topics_pb2.Record]
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    preferred_replica: int
    error: _errors_pb2.ErrorDetail
    next_offset: int
    diverged: EpochEnd
    batches_size: int
    last_epoch: int
    deletions_end: int
    chain_crc: int
    def __init__(self, partition: _Optional[int] = ..., batches: _Optional[bytes] = ..., records: _Optional[_Iterable[_Union[_topics_pb2.Record, _Mapping]]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., preferred_replica: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., next_offset: _Optional[int] = ..., diverged: _Optional[_Union[EpochEnd, _Mapping]] = ..., batches_size: _Optional[int] = ..., last_epoch: _Optional[int] = ..., deletions_end: _Optional[int] = ..., chain_crc: _Optional[int] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("leader_epoch", "end_offset")
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    leader_epoch: int
    end_offset: int
    def __init__(self, leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("client_id", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicListOffsets]
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicListOffsets, _Mapping]]] = ...) -> None: ...

class TopicListOffsets(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionListOffsets]
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionListOffsets, _Mapping]]] = ...) -> None: ...

class PartitionListOffsets(_message.Message):
    __slots__ = ("partition", "spec", "timestamp_ms", "leader_epoch", "offset", "producer")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    partition: int
    spec: OffsetSpec
    timestamp_ms: int
    leader_epoch: int
    offset: int
    producer: ProducerIdentity
    def __init__(self, partition: _Optional[int] = ..., spec: _Optional[_Union[OffsetSpec, str]] = ..., timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicListOffsetsResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicListOffsetsResult, _Mapping]]] = ...) -> None: ...

class TopicListOffsetsResult(_message.Message):
    __slots__ = ("name", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionListOffsetsResult]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionListOffsetsResult, _Mapping]]] = ...) -> None: ...

class PartitionListOffsetsResult(_message.Message):
    __slots__ = ("partition", "offset", "timestamp_ms", "leader_epoch", "error", "end_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    timestamp_ms: int
    leader_epoch: int
    error: _errors_pb2.ErrorDetail
    end_offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("client_id", "timeout_ms", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    timeout_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicDeleteRecords]
    def __init__(self, client_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicDeleteRecords, _Mapping]]] = ...) -> None: ...

class TopicDeleteRecords(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDeleteRecords]
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionDeleteRecords, _Mapping]]] = ...) -> None: ...

class PartitionDeleteRecords(_message.Message):
    __slots__ = ("partition", "before_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    before_offset: int
    def __init__(self, partition: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDeleteRecordsResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDeleteRecordsResult, _Mapping]]] = ...) -> None: ...

class TopicDeleteRecordsResult(_message.Message):
    __slots__ = ("name", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDeleteRecordsResult]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionDeleteRecordsResult, _Mapping]]] = ...) -> None: ...

class PartitionDeleteRecordsResult(_message.Message):
    __slots__ = ("partition", "log_start_offset", "error")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    partition: int
    log_start_offset: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, partition: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class DescribeLogsRequest(_message.Message):
    __slots__ = ("client_id", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_topics_pb2.TopicRef]
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_topics_pb2.TopicRef, _Mapping]]] = ...) -> None: ...

class DescribeLogsResponse(_message.Message):
    __slots__ = ("broker_id", "logs", "disk_total_bytes", "disk_free_bytes")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    logs: _containers.RepeatedCompositeFieldContainer[LogDescription]
    disk_total_bytes: int
    disk_free_bytes: int
    def __init__(self, broker_id: _Optional[int] = ..., logs: _Optional[_Iterable[_Union[LogDescription, _Mapping]]] = ..., disk_total_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ...) -> None: ...

class LogDescription(_message.Message):
    __slots__ = ("name", "topic_id", "partition", "log_start_offset", "log_end_offset", "high_watermark", "flushed_offset", "size_bytes", "segments", "leader_epoch", "is_leader", "offline_reason", "is_follower", "followers", "bytes_in_per_second", "bytes_out_per_second", "requests_per_second", "compacted_offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_REASON_FIELD_NUMBER: _ClassVar[int]
    IS_FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    flushed_offset: int
    size_bytes: int
    segments: int
    leader_epoch: int
    is_leader: bool
    offline_reason: str
    is_follower: bool
    followers: _containers.RepeatedCompositeFieldContainer[FollowerDescription]
    bytes_in_per_second: float
    bytes_out_per_second: float
    requests_per_second: float
    compacted_offset: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., is_leader: bool = ..., offline_reason: _Optional[str] = ..., is_follower: bool = ..., followers: _Optional[_Iterable[_Union[FollowerDescription, _Mapping]]] = ..., bytes_in_per_second: _Optional[float] = ..., bytes_out_per_second: _Optional[float] = ..., requests_per_second: _Optional[float] = ..., compacted_offset: _Optional[int] = ...) -> None: ...

class DeleteUnclaimedLogsRequest(_message.Message):
    __slots__ = ("client_id", "logs", "validate_only")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    logs: _containers.RepeatedCompositeFieldContainer[LogReference]
    validate_only: bool
    def __init__(self, client_id: _Optional[str] = ..., logs: _Optional[_Iterable[_Union[LogReference, _Mapping]]] = ..., validate_only: bool = ...) -> None: ...

class LogReference(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class DeleteUnclaimedLogsResponse(_message.Message):
    __slots__ = ("broker_id", "logs")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    logs: _containers.RepeatedCompositeFieldContainer[UnclaimedLog]
    def __init__(self, broker_id: _Optional[int] = ..., logs: _Optional[_Iterable[_Union[UnclaimedLog, _Mapping]]] = ...) -> None: ...

class UnclaimedLog(_message.Message):
    __slots__ = ("name", "topic_id", "partition", "size_bytes", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partition: int
    size_bytes: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., size_bytes: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class FollowerDescription(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "log_end_offset", "durable_offset", "behind_ms", "in_sync", "phi")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    PHI_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    log_end_offset: int
    durable_offset: int
    behind_ms: int
    in_sync: bool
    phi: float
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., durable_offset: _Optional[int] = ..., behind_ms: _Optional[int] = ..., in_sync: bool = ..., phi: _Optional[float] = ...) -> None: ...
