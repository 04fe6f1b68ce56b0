from headrace.v1 import errors_pb2 as _errors_pb2
from headrace.v1 import handshake_pb2 as _handshake_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_STATE_UNSPECIFIED: _ClassVar[GroupState]
    GROUP_STATE_EMPTY: _ClassVar[GroupState]
    GROUP_STATE_REBALANCING: _ClassVar[GroupState]
    GROUP_STATE_STABLE: _ClassVar[GroupState]
GROUP_STATE_UNSPECIFIED: GroupState
GROUP_STATE_EMPTY: GroupState
GROUP_STATE_REBALANCING: GroupState
GROUP_STATE_STABLE: GroupState

class HeartbeatRequest(_message.Message):
    __slots__ = ("client_id", "group_id", "member_id", "member_epoch", "instance_id", "rack", "topics", "topic_pattern", "assignor", "session_timeout_ms", "rebalance_timeout_ms", "owned", "known_revision", "max_wait_ms", "host", "handshake")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_id: str
    member_id: bytes
    member_epoch: int
    instance_id: str
    rack: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    owned: OwnedPartitions
    known_revision: int
    max_wait_ms: int
    host: str
    handshake: _handshake_pb2.Handshake
    def __init__(self, client_id: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[bytes] = ..., member_epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., assignor: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., owned: _Optional[_Union[OwnedPartitions, _Mapping]] = ..., known_revision: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., host: _Optional[str] = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ...) -> None: ...

class OwnedPartitions(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ...) -> None: ...

class GroupTopicPartitions(_message.Message):
    __slots__ = ("topic_id", "name", "partitions", "assignment_epochs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    assignment_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., assignment_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("member_epoch", "assigned", "revision", "heartbeat_interval_ms", "assignor", "group_epoch")
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    member_epoch: int
    assigned: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    revision: int
    heartbeat_interval_ms: int
    assignor: str
    group_epoch: int
    def __init__(self, member_epoch: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ..., revision: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., assignor: _Optional[str] = ..., group_epoch: _Optional[int] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("client_id", "group_id", "member_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_id: str
    member_id: bytes
    def __init__(self, client_id: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[bytes] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("client_id", "group_id", "member_id", "member_epoch", "topics", "commit_number", "expected_group_epoch")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_id: str
    member_id: bytes
    member_epoch: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    commit_number: int
    expected_group_epoch: int
    def __init__(self, client_id: _Optional[str] = ..., group_id: _Optional[str] = ..., member_id: _Optional[bytes] = ..., member_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ..., commit_number: _Optional[int] = ..., expected_group_epoch: _Optional[int] = ...) -> None: ...

class TopicOffsets(_message.Message):
    __slots__ = ("topic_id", "name", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("partition", "offset", "leader_epoch", "metadata", "committed_ms", "error", "is_added")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_ADDED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    error: _errors_pb2.ErrorDetail
    is_added: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_ms: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., is_added: bool = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("topics", "revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    revision: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("client_id", "group_id", "topics", "min_revision")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    min_revision: int
    def __init__(self, client_id: _Optional[str] = ..., group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ..., min_revision: _Optional[int] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("topics", "revision")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    revision: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("client_id", "min_revision")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    min_revision: int
    def __init__(self, client_id: _Optional[str] = ..., min_revision: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupListing]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupListing, _Mapping]]] = ...) -> None: ...

class GroupListing(_message.Message):
    __slots__ = ("group_id", "state", "members", "partitions", "assignor", "empty_since_ms")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    EMPTY_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: GroupState
    members: int
    partitions: int
    assignor: str
    empty_since_ms: int
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[_Union[GroupState, str]] = ..., members: _Optional[int] = ..., partitions: _Optional[int] = ..., assignor: _Optional[str] = ..., empty_since_ms: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("client_id", "group_id", "min_revision")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_id: str
    min_revision: int
    def __init__(self, client_id: _Optional[str] = ..., group_id: _Optional[str] = ..., min_revision: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("listing", "group_epoch", "assignment_epoch", "members", "offsets", "unowned", "revision")
    LISTING_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    UNOWNED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    listing: GroupListing
    group_epoch: int
    assignment_epoch: int
    members: _containers.RepeatedCompositeFieldContainer[MemberDescription]
    offsets: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    unowned: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    revision: int
    def __init__(self, listing: _Optional[_Union[GroupListing, _Mapping]] = ..., group_epoch: _Optional[int] = ..., assignment_epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberDescription, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ..., unowned: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class MemberDescription(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "host", "rack", "member_epoch", "topics", "topic_pattern", "owned", "target", "joined_ms", "session_timeout_ms", "revoking_ms", "live", "user")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REVOKING_MS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    member_id: bytes
    instance_id: str
    client_id: str
    host: str
    rack: str
    member_epoch: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    owned: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    target: _containers.RepeatedCompositeFieldContainer[GroupTopicPartitions]
    joined_ms: int
    session_timeout_ms: int
    revoking_ms: int
    live: bool
    user: str
    def __init__(self, member_id: _Optional[bytes] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., rack: _Optional[str] = ..., member_epoch: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., owned: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[GroupTopicPartitions, _Mapping]]] = ..., joined_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., revoking_ms: _Optional[int] = ..., live: bool = ..., user: _Optional[str] = ...) -> None: ...

class DeleteGroupsRequest(_message.Message):
    __slots__ = ("client_id", "group_ids", "expected_group_epochs")
    class ExpectedGroupEpochsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GROUP_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    expected_group_epochs: _containers.ScalarMap[str, int]
    def __init__(self, client_id: _Optional[str] = ..., group_ids: _Optional[_Iterable[str]] = ..., expected_group_epochs: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DeleteGroupsResponse(_message.Message):
    __slots__ = ("groups", "revision")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupResult]
    revision: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupResult, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("group_id", "error")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    error: _errors_pb2.ErrorDetail
    def __init__(self, group_id: _Optional[str] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...
