from headrace.v1 import errors_pb2 as _errors_pb2
from headrace.v1 import handshake_pb2 as _handshake_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaFetchRequest(_message.Message):
    __slots__ = ("follower", "topics")
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    follower: FollowerIdentity
    topics: _containers.RepeatedCompositeFieldContainer[TopicReplicaFetch]
    def __init__(self, follower: _Optional[_Union[FollowerIdentity, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicReplicaFetch, _Mapping]]] = ...) -> None: ...

class FollowerIdentity(_message.Message):
    __slots__ = ("cluster_id", "generation", "broker_id", "broker_epoch", "handshake", "proof")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    broker_id: int
    broker_epoch: int
    handshake: _handshake_pb2.Handshake
    proof: bytes
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ..., proof: _Optional[bytes] = ...) -> None: ...

class TopicReplicaFetch(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReplicaFetch]
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionReplicaFetch, _Mapping]]] = ...) -> None: ...

class PartitionReplicaFetch(_message.Message):
    __slots__ = ("partition", "leader_epoch", "token", "offset", "durable_offset", "last_epoch", "last_crc", "high_watermark", "corruption_detected", "partition_epoch", "read_offset", "log_start_offset", "deletions_end", "leader_flushed_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_CRC_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CORRUPTION_DETECTED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_END_FIELD_NUMBER: _ClassVar[int]
    LEADER_FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader_epoch: int
    token: int
    offset: int
    durable_offset: int
    last_epoch: int
    last_crc: int
    high_watermark: int
    corruption_detected: bool
    partition_epoch: int
    read_offset: int
    log_start_offset: int
    deletions_end: int
    leader_flushed_offset: int
    def __init__(self, partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., token: _Optional[int] = ..., offset: _Optional[int] = ..., durable_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., last_crc: _Optional[int] = ..., high_watermark: _Optional[int] = ..., corruption_detected: bool = ..., partition_epoch: _Optional[int] = ..., read_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., deletions_end: _Optional[int] = ..., leader_flushed_offset: _Optional[int] = ...) -> None: ...

class ReplicaFetchResponse(_message.Message):
    __slots__ = ("topics", "challenge")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicReplicaFetchResult]
    challenge: bytes
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicReplicaFetchResult, _Mapping]]] = ..., challenge: _Optional[bytes] = ...) -> None: ...

class TopicReplicaFetchResult(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReplicaFetchResult]
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionReplicaFetchResult, _Mapping]]] = ...) -> None: ...

class PartitionReplicaFetchResult(_message.Message):
    __slots__ = ("partition", "token", "leader_epoch", "batches_size", "high_watermark", "log_start_offset", "more", "diverged", "restart", "error", "next_offset", "deletions_end", "flushed_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_SIZE_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    token: int
    leader_epoch: int
    batches_size: int
    high_watermark: int
    log_start_offset: int
    more: bool
    diverged: Diverged
    restart: Restart
    error: _errors_pb2.ErrorDetail
    next_offset: int
    deletions_end: int
    flushed_offset: int
    def __init__(self, partition: _Optional[int] = ..., token: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., batches_size: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., more: bool = ..., diverged: _Optional[_Union[Diverged, _Mapping]] = ..., restart: _Optional[_Union[Restart, _Mapping]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., next_offset: _Optional[int] = ..., deletions_end: _Optional[int] = ..., flushed_offset: _Optional[int] = ...) -> None: ...

class Diverged(_message.Message):
    __slots__ = ("leader_epoch", "end_offset", "compacted")
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    leader_epoch: int
    end_offset: int
    compacted: bool
    def __init__(self, leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., compacted: bool = ...) -> None: ...

class Restart(_message.Message):
    __slots__ = ("offset", "previous_crc", "compacted")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_CRC_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    previous_crc: int
    compacted: bool
    def __init__(self, offset: _Optional[int] = ..., previous_crc: _Optional[int] = ..., compacted: bool = ...) -> None: ...
