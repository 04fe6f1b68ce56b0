from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterMeta(_message.Message):
    __slots__ = ("cluster_id", "generation", "format_version", "secret")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    format_version: int
    secret: bytes
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., format_version: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class BrokerLive(_message.Message):
    __slots__ = ("broker_id", "address", "internal_address", "rack", "host", "boot_id", "draining", "resumes", "clean", "version", "max_batch_bytes", "suspected_brokers", "storage_since", "capabilities", "native_address", "instance", "takes_no_replicas", "replication_address", "data_center")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUSPECTED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_SINCE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TAKES_NO_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_CENTER_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    internal_address: str
    rack: str
    host: str
    boot_id: bytes
    draining: bool
    resumes: int
    clean: bool
    version: str
    max_batch_bytes: int
    suspected_brokers: _containers.RepeatedScalarFieldContainer[int]
    storage_since: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    native_address: str
    instance: str
    takes_no_replicas: str
    replication_address: str
    data_center: str
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., internal_address: _Optional[str] = ..., rack: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[bytes] = ..., draining: bool = ..., resumes: _Optional[int] = ..., clean: bool = ..., version: _Optional[str] = ..., max_batch_bytes: _Optional[int] = ..., suspected_brokers: _Optional[_Iterable[int]] = ..., storage_since: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., native_address: _Optional[str] = ..., instance: _Optional[str] = ..., takes_no_replicas: _Optional[str] = ..., replication_address: _Optional[str] = ..., data_center: _Optional[str] = ...) -> None: ...

class BrokerSession(_message.Message):
    __slots__ = ("boot_id", "storage_id", "continuous_since", "storage_since", "storage_incarnation")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_SINCE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_SINCE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    storage_id: bytes
    continuous_since: int
    storage_since: int
    storage_incarnation: bytes
    def __init__(self, boot_id: _Optional[bytes] = ..., storage_id: _Optional[bytes] = ..., continuous_since: _Optional[int] = ..., storage_since: _Optional[int] = ..., storage_incarnation: _Optional[bytes] = ...) -> None: ...

class DirectoryVersion(_message.Message):
    __slots__ = ("storage_id", "version")
    STORAGE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    storage_id: bytes
    version: int
    def __init__(self, storage_id: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class CoordinatorLive(_message.Message):
    __slots__ = ("coordinator_id", "address", "version", "capabilities")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    address: str
    version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, coordinator_id: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "replication_factor", "configs", "created_ms", "owner")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    configs: _containers.ScalarMap[str, str]
    created_ms: int
    owner: str
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ..., created_ms: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class DeletedTopic(_message.Message):
    __slots__ = ("topic", "deleted_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    deleted_ms: int
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., deleted_ms: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("replicas", "adding", "removing", "leader", "leader_epoch", "in_sync", "eligible_leaders", "min_insync_replicas", "unclean", "partition_epoch", "unclean_epoch", "copy_bytes_per_second", "durable", "fetch_fences", "successors", "high_watermark")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_LEADERS_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FENCES_FIELD_NUMBER: _ClassVar[int]
    SUCCESSORS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    leader: Replica
    leader_epoch: int
    in_sync: _containers.RepeatedCompositeFieldContainer[Replica]
    eligible_leaders: _containers.RepeatedCompositeFieldContainer[Replica]
    min_insync_replicas: int
    unclean: bool
    partition_epoch: int
    unclean_epoch: int
    copy_bytes_per_second: int
    durable: bool
    fetch_fences: _containers.RepeatedCompositeFieldContainer[FetchFence]
    successors: _containers.RepeatedCompositeFieldContainer[Replica]
    high_watermark: int
    def __init__(self, replicas: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., leader: _Optional[_Union[Replica, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., in_sync: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., eligible_leaders: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., min_insync_replicas: _Optional[int] = ..., unclean: bool = ..., partition_epoch: _Optional[int] = ..., unclean_epoch: _Optional[int] = ..., copy_bytes_per_second: _Optional[int] = ..., durable: bool = ..., fetch_fences: _Optional[_Iterable[_Union[FetchFence, _Mapping]]] = ..., successors: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., high_watermark: _Optional[int] = ...) -> None: ...

class FetchFence(_message.Message):
    __slots__ = ("broker_id", "partition_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    partition_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class DrainedBroker(_message.Message):
    __slots__ = ("since_ms",)
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    def __init__(self, since_ms: _Optional[int] = ...) -> None: ...

class WriteFence(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessClock(_message.Message):
    __slots__ = ("wall_ms", "in_doubt", "believed_ms")
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    IN_DOUBT_FIELD_NUMBER: _ClassVar[int]
    BELIEVED_MS_FIELD_NUMBER: _ClassVar[int]
    wall_ms: int
    in_doubt: bool
    believed_ms: int
    def __init__(self, wall_ms: _Optional[int] = ..., in_doubt: bool = ..., believed_ms: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group_epoch", "assignment_epoch", "assignor", "members", "topics", "empty_since_ms", "user", "reset_number")
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RESET_NUMBER_FIELD_NUMBER: _ClassVar[int]
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    topics: _containers.RepeatedCompositeFieldContainer[GroupTopic]
    empty_since_ms: int
    user: str
    reset_number: int
    def __init__(self, group_epoch: _Optional[int] = ..., assignment_epoch: _Optional[int] = ..., assignor: _Optional[str] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[GroupTopic, _Mapping]]] = ..., empty_since_ms: _Optional[int] = ..., user: _Optional[str] = ..., reset_number: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "host", "rack", "topics", "topic_pattern", "member_epoch", "lease_id", "session_timeout_ms", "rebalance_timeout_ms", "joined_ms", "revoking_since_ms", "user")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    member_id: bytes
    instance_id: str
    client_id: str
    host: str
    rack: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    member_epoch: int
    lease_id: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    joined_ms: int
    revoking_since_ms: int
    user: str
    def __init__(self, member_id: _Optional[bytes] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., rack: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., member_epoch: _Optional[int] = ..., lease_id: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., joined_ms: _Optional[int] = ..., revoking_since_ms: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class GroupTopic(_message.Message):
    __slots__ = ("topic_id", "name", "target", "owner", "assignment_epochs", "first_partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    FIRST_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    target: _containers.RepeatedScalarFieldContainer[int]
    owner: _containers.RepeatedScalarFieldContainer[int]
    assignment_epochs: _containers.RepeatedScalarFieldContainer[int]
    first_partitions: int
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., target: _Optional[_Iterable[int]] = ..., owner: _Optional[_Iterable[int]] = ..., assignment_epochs: _Optional[_Iterable[int]] = ..., first_partitions: _Optional[int] = ...) -> None: ...

class MemberAssignment(_message.Message):
    __slots__ = ("member_epoch", "topics")
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    member_epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[AssignedTopic]
    def __init__(self, member_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[AssignedTopic, _Mapping]]] = ...) -> None: ...

class AssignedTopic(_message.Message):
    __slots__ = ("topic_id", "name", "partitions", "assignment_epochs", "revoking")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    REVOKING_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    assignment_epochs: _containers.RepeatedScalarFieldContainer[int]
    revoking: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., assignment_epochs: _Optional[_Iterable[int]] = ..., revoking: _Optional[_Iterable[int]] = ...) -> None: ...

class LiveMember(_message.Message):
    __slots__ = ("client_id", "host")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    host: str
    def __init__(self, client_id: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("offset", "leader_epoch", "metadata", "committed_ms", "member_id", "member_epoch", "commit_number")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    member_id: bytes
    member_epoch: int
    commit_number: int
    def __init__(self, offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_ms: _Optional[int] = ..., member_id: _Optional[bytes] = ..., member_epoch: _Optional[int] = ..., commit_number: _Optional[int] = ...) -> None: ...

class StoredUser(_message.Message):
    __slots__ = ("name", "disabled", "groups", "description", "api_keys", "certificate_names", "created_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    API_KEYS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_NAMES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    disabled: bool
    groups: _containers.RepeatedScalarFieldContainer[str]
    description: str
    api_keys: _containers.RepeatedCompositeFieldContainer[StoredApiKey]
    certificate_names: _containers.RepeatedScalarFieldContainer[str]
    created_ms: int
    def __init__(self, name: _Optional[str] = ..., disabled: bool = ..., groups: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., api_keys: _Optional[_Iterable[_Union[StoredApiKey, _Mapping]]] = ..., certificate_names: _Optional[_Iterable[str]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class StoredApiKey(_message.Message):
    __slots__ = ("key_id", "sha256", "description", "created_ms", "expires_ms")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    sha256: bytes
    description: str
    created_ms: int
    expires_ms: int
    def __init__(self, key_id: _Optional[str] = ..., sha256: _Optional[bytes] = ..., description: _Optional[str] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class SigningKey(_message.Message):
    __slots__ = ("key_id", "secret", "created_ms")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    secret: bytes
    created_ms: int
    def __init__(self, key_id: _Optional[str] = ..., secret: _Optional[bytes] = ..., created_ms: _Optional[int] = ...) -> None: ...

class ClusterSecrets(_message.Message):
    __slots__ = ("used", "next", "previous")
    USED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    used: bytes
    next: bytes
    previous: bytes
    def __init__(self, used: _Optional[bytes] = ..., next: _Optional[bytes] = ..., previous: _Optional[bytes] = ...) -> None: ...

class StoredPosture(_message.Message):
    __slots__ = ("posture", "set_by", "set_ms")
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    posture: int
    set_by: str
    set_ms: int
    def __init__(self, posture: _Optional[int] = ..., set_by: _Optional[str] = ..., set_ms: _Optional[int] = ...) -> None: ...

class SessionClaims(_message.Message):
    __slots__ = ("user", "groups", "proof", "credential", "issued_ms", "expires_ms")
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    ISSUED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    proof: int
    credential: str
    issued_ms: int
    expires_ms: int
    def __init__(self, user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., proof: _Optional[int] = ..., credential: _Optional[str] = ..., issued_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class SchemaRegistryState(_message.Message):
    __slots__ = ("last_schema_id", "compatibility", "mode")
    LAST_SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    last_schema_id: int
    compatibility: str
    mode: str
    def __init__(self, last_schema_id: _Optional[int] = ..., compatibility: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class StoredSchema(_message.Message):
    __slots__ = ("schema_id", "schema_type", "text", "references", "file_descriptor", "digest")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    FILE_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    schema_type: str
    text: str
    references: _containers.RepeatedCompositeFieldContainer[SchemaReference]
    file_descriptor: bytes
    digest: bytes
    def __init__(self, schema_id: _Optional[int] = ..., schema_type: _Optional[str] = ..., text: _Optional[str] = ..., references: _Optional[_Iterable[_Union[SchemaReference, _Mapping]]] = ..., file_descriptor: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class SchemaReference(_message.Message):
    __slots__ = ("name", "subject", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    version: int
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SchemaSubject(_message.Message):
    __slots__ = ("name", "versions", "compatibility", "mode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedCompositeFieldContainer[SubjectVersion]
    compatibility: str
    mode: str
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[SubjectVersion, _Mapping]]] = ..., compatibility: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class SubjectVersion(_message.Message):
    __slots__ = ("version", "schema_id", "deleted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    version: int
    schema_id: int
    deleted: bool
    def __init__(self, version: _Optional[int] = ..., schema_id: _Optional[int] = ..., deleted: bool = ...) -> None: ...

class SchemaRegistryAct(_message.Message):
    __slots__ = ("subject", "version", "body")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    subject: str
    version: str
    body: str
    def __init__(self, subject: _Optional[str] = ..., version: _Optional[str] = ..., body: _Optional[str] = ...) -> None: ...
