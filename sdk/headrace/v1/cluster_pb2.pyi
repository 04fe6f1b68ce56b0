from headrace.v1 import errors_pb2 as _errors_pb2
from headrace.v1 import handshake_pb2 as _handshake_pb2
from headrace.v1 import topics_pb2 as _topics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_SOURCE_UNSPECIFIED: _ClassVar[ConfigSource]
    CONFIG_SOURCE_DEFAULT: _ClassVar[ConfigSource]
    CONFIG_SOURCE_TOPIC: _ClassVar[ConfigSource]

class ElectionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELECTION_TYPE_UNSPECIFIED: _ClassVar[ElectionType]
    ELECTION_TYPE_PREFERRED: _ClassVar[ElectionType]
    ELECTION_TYPE_UNCLEAN: _ClassVar[ElectionType]
CONFIG_SOURCE_UNSPECIFIED: ConfigSource
CONFIG_SOURCE_DEFAULT: ConfigSource
CONFIG_SOURCE_TOPIC: ConfigSource
ELECTION_TYPE_UNSPECIFIED: ElectionType
ELECTION_TYPE_PREFERRED: ElectionType
ELECTION_TYPE_UNCLEAN: ElectionType

class GetMetadataRequest(_message.Message):
    __slots__ = ("client_id", "topics", "brokers_only", "handshake")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_topics_pb2.TopicRef]
    brokers_only: bool
    handshake: _handshake_pb2.Handshake
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_topics_pb2.TopicRef, _Mapping]]] = ..., brokers_only: bool = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ...) -> None: ...

class GetMetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "revision", "age_ms", "brokers", "topics", "coordinators", "max_batch_bytes", "answered_by", "handshake", "generation")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    revision: int
    age_ms: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerMetadata]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    coordinators: _containers.RepeatedScalarFieldContainer[str]
    max_batch_bytes: int
    answered_by: str
    handshake: _handshake_pb2.Handshake
    generation: int
    def __init__(self, cluster_id: _Optional[str] = ..., revision: _Optional[int] = ..., age_ms: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerMetadata, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ..., coordinators: _Optional[_Iterable[str]] = ..., max_batch_bytes: _Optional[int] = ..., answered_by: _Optional[str] = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class BrokerMetadata(_message.Message):
    __slots__ = ("broker_id", "address", "rack", "host", "broker_epoch", "draining", "version", "native_address", "data_center")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NATIVE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_CENTER_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    rack: str
    host: str
    broker_epoch: int
    draining: bool
    version: str
    native_address: str
    data_center: str
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., host: _Optional[str] = ..., broker_epoch: _Optional[int] = ..., draining: bool = ..., version: _Optional[str] = ..., native_address: _Optional[str] = ..., data_center: _Optional[str] = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "max_batch_bytes", "error", "placement", "columns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    max_batch_bytes: int
    error: _errors_pb2.ErrorDetail
    placement: str
    columns: str
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ..., max_batch_bytes: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., placement: _Optional[str] = ..., columns: _Optional[str] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("partition", "leader_id", "leader_epoch", "replicas", "in_sync_replicas", "eligible_leaders", "adding_replicas", "removing_replicas", "unclean", "min_insync_replicas")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_LEADERS_FIELD_NUMBER: _ClassVar[int]
    ADDING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REMOVING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync_replicas: _containers.RepeatedScalarFieldContainer[int]
    eligible_leaders: _containers.RepeatedScalarFieldContainer[int]
    adding_replicas: _containers.RepeatedScalarFieldContainer[int]
    removing_replicas: _containers.RepeatedScalarFieldContainer[int]
    unclean: bool
    min_insync_replicas: int
    def __init__(self, partition: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync_replicas: _Optional[_Iterable[int]] = ..., eligible_leaders: _Optional[_Iterable[int]] = ..., adding_replicas: _Optional[_Iterable[int]] = ..., removing_replicas: _Optional[_Iterable[int]] = ..., unclean: bool = ..., min_insync_replicas: _Optional[int] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("client_id", "topics", "validate_only", "timeout_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    validate_only: bool
    timeout_ms: int
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., validate_only: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "configs", "assignments")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    configs: _containers.ScalarMap[str, str]
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ..., assignments: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ...) -> None: ...

class ReplicaList(_message.Message):
    __slots__ = ("broker_ids",)
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[CreateTopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[CreateTopicResult, _Mapping]]] = ...) -> None: ...

class CreateTopicResult(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "replication_factor", "warnings", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    error: _errors_pb2.ErrorDetail
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("client_id", "topics", "validate_only", "unclaimed")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_topics_pb2.TopicRef]
    validate_only: bool
    unclaimed: bool
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_topics_pb2.TopicRef, _Mapping]]] = ..., validate_only: bool = ..., unclaimed: bool = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "topic_id", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    error: _errors_pb2.ErrorDetail
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("client_id", "topic", "total_partitions", "assignments", "validate_only")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topic: _topics_pb2.TopicRef
    total_partitions: int
    assignments: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    validate_only: bool
    def __init__(self, client_id: _Optional[str] = ..., topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., total_partitions: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ..., validate_only: bool = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ("result", "warnings")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    result: TopicResult
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, result: _Optional[_Union[TopicResult, _Mapping]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeConfigsRequest(_message.Message):
    __slots__ = ("client_id", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_topics_pb2.TopicRef]
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_topics_pb2.TopicRef, _Mapping]]] = ...) -> None: ...

class DescribeConfigsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicConfigs]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicConfigs, _Mapping]]] = ...) -> None: ...

class TopicConfigs(_message.Message):
    __slots__ = ("name", "topic_id", "configs", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    configs: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    error: _errors_pb2.ErrorDetail
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., configs: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "source", "default_value", "documentation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: ConfigSource
    default_value: str
    documentation: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[_Union[ConfigSource, str]] = ..., default_value: _Optional[str] = ..., documentation: _Optional[str] = ...) -> None: ...

class AlterConfigsRequest(_message.Message):
    __slots__ = ("client_id", "topic", "set", "unset", "validate_only")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topic: _topics_pb2.TopicRef
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    validate_only: bool
    def __init__(self, client_id: _Optional[str] = ..., topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., validate_only: bool = ...) -> None: ...

class AlterConfigsResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: TopicResult
    def __init__(self, result: _Optional[_Union[TopicResult, _Mapping]] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("client_id", "read_drained_brokers")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    READ_DRAINED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    read_drained_brokers: bool
    def __init__(self, client_id: _Optional[str] = ..., read_drained_brokers: bool = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "generation", "format_version", "controller_id", "controller_epoch", "brokers", "coordinators", "topics", "partitions", "offline_partitions", "under_replicated_partitions", "etcd_version", "revision", "undecodable_keys", "drained_brokers")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ETCD_VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UNDECODABLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    format_version: int
    controller_id: str
    controller_epoch: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerMetadata]
    coordinators: _containers.RepeatedCompositeFieldContainer[CoordinatorMetadata]
    topics: int
    partitions: int
    offline_partitions: int
    under_replicated_partitions: int
    etcd_version: str
    revision: int
    undecodable_keys: int
    drained_brokers: DrainedBrokers
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., format_version: _Optional[int] = ..., controller_id: _Optional[str] = ..., controller_epoch: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerMetadata, _Mapping]]] = ..., coordinators: _Optional[_Iterable[_Union[CoordinatorMetadata, _Mapping]]] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., offline_partitions: _Optional[int] = ..., under_replicated_partitions: _Optional[int] = ..., etcd_version: _Optional[str] = ..., revision: _Optional[int] = ..., undecodable_keys: _Optional[int] = ..., drained_brokers: _Optional[_Union[DrainedBrokers, _Mapping]] = ...) -> None: ...

class DrainedBrokers(_message.Message):
    __slots__ = ("broker_ids", "error")
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    error: _errors_pb2.ErrorDetail
    def __init__(self, broker_ids: _Optional[_Iterable[int]] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class CoordinatorMetadata(_message.Message):
    __slots__ = ("coordinator_id", "address", "version")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    address: str
    version: str
    def __init__(self, coordinator_id: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class InitProducerIdRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class InitProducerIdResponse(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class ReassignPartitionsRequest(_message.Message):
    __slots__ = ("client_id", "partitions", "copy_bytes_per_second", "validate_only")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReassignment]
    copy_bytes_per_second: int
    validate_only: bool
    def __init__(self, client_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionReassignment, _Mapping]]] = ..., copy_bytes_per_second: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class PartitionReassignment(_message.Message):
    __slots__ = ("topic", "partition", "replicas", "cancel")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    cancel: bool
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., cancel: bool = ...) -> None: ...

class ReassignPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionChangeResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionChangeResult, _Mapping]]] = ...) -> None: ...

class PartitionChangeResult(_message.Message):
    __slots__ = ("name", "topic_id", "partition", "error", "unchanged", "leader_id", "leader_epoch", "replicas")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partition: int
    error: _errors_pb2.ErrorDetail
    unchanged: bool
    leader_id: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., unchanged: bool = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class ListReassignmentsRequest(_message.Message):
    __slots__ = ("client_id", "topics")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[_topics_pb2.TopicRef]
    def __init__(self, client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[_topics_pb2.TopicRef, _Mapping]]] = ...) -> None: ...

class ListReassignmentsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Reassignment]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ...) -> None: ...

class Reassignment(_message.Message):
    __slots__ = ("name", "topic_id", "partition", "replicas", "adding", "removing", "in_sync_replicas", "leader_id", "copy_bytes_per_second")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    in_sync_replicas: _containers.RepeatedScalarFieldContainer[int]
    leader_id: int
    copy_bytes_per_second: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., in_sync_replicas: _Optional[_Iterable[int]] = ..., leader_id: _Optional[int] = ..., copy_bytes_per_second: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("client_id", "type", "topics", "broker_id", "validate_only")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    type: ElectionType
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    broker_id: int
    validate_only: bool
    def __init__(self, client_id: _Optional[str] = ..., type: _Optional[_Union[ElectionType, str]] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., broker_id: _Optional[int] = ..., validate_only: bool = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: _topics_pb2.TopicRef
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[_Union[_topics_pb2.TopicRef, _Mapping]] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class ElectLeadersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionChangeResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionChangeResult, _Mapping]]] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("client_id", "broker_id", "drain")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    broker_id: int
    drain: bool
    def __init__(self, client_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., drain: bool = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("leaders", "unchanged")
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    leaders: int
    unchanged: bool
    def __init__(self, leaders: _Optional[int] = ..., unchanged: bool = ...) -> None: ...

class DumpMetadataRequest(_message.Message):
    __slots__ = ("client_id", "prefix")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    prefix: str
    def __init__(self, client_id: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class DumpMetadataResponse(_message.Message):
    __slots__ = ("key", "value_json", "create_revision", "mod_revision", "version", "lease_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    key: str
    value_json: str
    create_revision: int
    mod_revision: int
    version: int
    lease_id: int
    def __init__(self, key: _Optional[str] = ..., value_json: _Optional[str] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ..., version: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...
