from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenAccess(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPEN_ACCESS_UNSPECIFIED: _ClassVar[OpenAccess]
    OPEN_ACCESS_CLIENTS_WITHOUT_TLS: _ClassVar[OpenAccess]
    OPEN_ACCESS_SERVERS_WITHOUT_TLS: _ClassVar[OpenAccess]
    OPEN_ACCESS_ETCD_WITHOUT_TLS: _ClassVar[OpenAccess]
    OPEN_ACCESS_ETCD_WITHOUT_USERS: _ClassVar[OpenAccess]
    OPEN_ACCESS_METRICS_WITHOUT_IDENTITY: _ClassVar[OpenAccess]
    OPEN_ACCESS_METRICS_WITHOUT_TLS: _ClassVar[OpenAccess]
OPEN_ACCESS_UNSPECIFIED: OpenAccess
OPEN_ACCESS_CLIENTS_WITHOUT_TLS: OpenAccess
OPEN_ACCESS_SERVERS_WITHOUT_TLS: OpenAccess
OPEN_ACCESS_ETCD_WITHOUT_TLS: OpenAccess
OPEN_ACCESS_ETCD_WITHOUT_USERS: OpenAccess
OPEN_ACCESS_METRICS_WITHOUT_IDENTITY: OpenAccess
OPEN_ACCESS_METRICS_WITHOUT_TLS: OpenAccess

class DescribeProcessRequest(_message.Message):
    __slots__ = ("client_id", "measure_disk")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MEASURE_DISK_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    measure_disk: bool
    def __init__(self, client_id: _Optional[str] = ..., measure_disk: bool = ...) -> None: ...

class DescribeProcessResponse(_message.Message):
    __slots__ = ("name", "version", "python_version", "host", "pid", "started_ms", "now_ms", "log_level", "log_level_until_ms", "open_files", "max_open_files", "health", "disk", "etcd", "certificates", "open_access", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    MAX_OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    ETCD_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    OPEN_ACCESS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    python_version: str
    host: str
    pid: int
    started_ms: int
    now_ms: int
    log_level: str
    log_level_until_ms: int
    open_files: int
    max_open_files: int
    health: _containers.RepeatedCompositeFieldContainer[HealthDescription]
    disk: DiskDescription
    etcd: _containers.RepeatedCompositeFieldContainer[EtcdMemberDescription]
    certificates: _containers.RepeatedCompositeFieldContainer[CertificateDescription]
    open_access: _containers.RepeatedScalarFieldContainer[OpenAccess]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., python_version: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., started_ms: _Optional[int] = ..., now_ms: _Optional[int] = ..., log_level: _Optional[str] = ..., log_level_until_ms: _Optional[int] = ..., open_files: _Optional[int] = ..., max_open_files: _Optional[int] = ..., health: _Optional[_Iterable[_Union[HealthDescription, _Mapping]]] = ..., disk: _Optional[_Union[DiskDescription, _Mapping]] = ..., etcd: _Optional[_Iterable[_Union[EtcdMemberDescription, _Mapping]]] = ..., certificates: _Optional[_Iterable[_Union[CertificateDescription, _Mapping]]] = ..., open_access: _Optional[_Iterable[_Union[OpenAccess, str]]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HealthDescription(_message.Message):
    __slots__ = ("name", "causes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    causes: _containers.RepeatedCompositeFieldContainer[HealthCauseDescription]
    def __init__(self, name: _Optional[str] = ..., causes: _Optional[_Iterable[_Union[HealthCauseDescription, _Mapping]]] = ...) -> None: ...

class HealthCauseDescription(_message.Message):
    __slots__ = ("reason", "action")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    reason: str
    action: str
    def __init__(self, reason: _Optional[str] = ..., action: _Optional[str] = ...) -> None: ...

class DiskDescription(_message.Message):
    __slots__ = ("data_dir", "total_bytes", "free_bytes", "refuse_below_bytes", "resume_above_bytes", "fsync_us", "filesystem", "offline_logs", "unclaimed_logs", "unclaimed_topic_ids")
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSE_BELOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESUME_ABOVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FSYNC_US_FIELD_NUMBER: _ClassVar[int]
    FILESYSTEM_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_LOGS_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_LOGS_FIELD_NUMBER: _ClassVar[int]
    UNCLAIMED_TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    data_dir: str
    total_bytes: int
    free_bytes: int
    refuse_below_bytes: int
    resume_above_bytes: int
    fsync_us: int
    filesystem: str
    offline_logs: int
    unclaimed_logs: int
    unclaimed_topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, data_dir: _Optional[str] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., refuse_below_bytes: _Optional[int] = ..., resume_above_bytes: _Optional[int] = ..., fsync_us: _Optional[int] = ..., filesystem: _Optional[str] = ..., offline_logs: _Optional[int] = ..., unclaimed_logs: _Optional[int] = ..., unclaimed_topic_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EtcdMemberDescription(_message.Message):
    __slots__ = ("endpoint", "error", "version", "answered_us", "database_bytes", "database_used_bytes", "quota_bytes", "has_leader", "is_learner", "alarms")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_US_FIELD_NUMBER: _ClassVar[int]
    DATABASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATABASE_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    HAS_LEADER_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    error: str
    version: str
    answered_us: int
    database_bytes: int
    database_used_bytes: int
    quota_bytes: int
    has_leader: bool
    is_learner: bool
    alarms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, endpoint: _Optional[str] = ..., error: _Optional[str] = ..., version: _Optional[str] = ..., answered_us: _Optional[int] = ..., database_bytes: _Optional[int] = ..., database_used_bytes: _Optional[int] = ..., quota_bytes: _Optional[int] = ..., has_leader: bool = ..., is_learner: bool = ..., alarms: _Optional[_Iterable[str]] = ...) -> None: ...

class CertificateDescription(_message.Message):
    __slots__ = ("use", "path", "subject", "not_after_ms")
    USE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    use: str
    path: str
    subject: str
    not_after_ms: int
    def __init__(self, use: _Optional[str] = ..., path: _Optional[str] = ..., subject: _Optional[str] = ..., not_after_ms: _Optional[int] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("client_id", "level", "duration_ms", "server")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    level: str
    duration_ms: int
    server: str
    def __init__(self, client_id: _Optional[str] = ..., level: _Optional[str] = ..., duration_ms: _Optional[int] = ..., server: _Optional[str] = ...) -> None: ...

class SetLogLevelResponse(_message.Message):
    __slots__ = ("previous_level", "name")
    PREVIOUS_LEVEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    previous_level: str
    name: str
    def __init__(self, previous_level: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
