from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Posture(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POSTURE_UNSPECIFIED: _ClassVar[Posture]
    POSTURE_OPEN: _ClassVar[Posture]
    POSTURE_OBSERVE: _ClassVar[Posture]
    POSTURE_REQUIRED: _ClassVar[Posture]
POSTURE_UNSPECIFIED: Posture
POSTURE_OPEN: Posture
POSTURE_OBSERVE: Posture
POSTURE_REQUIRED: Posture

class OpenSessionRequest(_message.Message):
    __slots__ = ("client_id", "api_key", "jwt", "certificate")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    JWT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    api_key: str
    jwt: str
    certificate: CertificateProof
    def __init__(self, client_id: _Optional[str] = ..., api_key: _Optional[str] = ..., jwt: _Optional[str] = ..., certificate: _Optional[_Union[CertificateProof, _Mapping]] = ...) -> None: ...

class CertificateProof(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("token", "lifetime_ms", "user", "coordinators")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    token: str
    lifetime_ms: int
    user: str
    coordinators: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[str] = ..., lifetime_ms: _Optional[int] = ..., user: _Optional[str] = ..., coordinators: _Optional[_Iterable[str]] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("user", "groups", "identified_by", "grants", "posture", "remaining_ms")
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIED_BY_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    identified_by: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    posture: Posture
    remaining_ms: int
    def __init__(self, user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., identified_by: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., posture: _Optional[_Union[Posture, str]] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class User(_message.Message):
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
    api_keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    certificate_names: _containers.RepeatedScalarFieldContainer[str]
    created_ms: int
    def __init__(self, name: _Optional[str] = ..., disabled: bool = ..., groups: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., api_keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ..., certificate_names: _Optional[_Iterable[str]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class ApiKey(_message.Message):
    __slots__ = ("key_id", "description", "created_ms", "expires_ms")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    description: str
    created_ms: int
    expires_ms: int
    def __init__(self, key_id: _Optional[str] = ..., description: _Optional[str] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class PutUserRequest(_message.Message):
    __slots__ = ("client_id", "user", "create_only")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CREATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    user: User
    create_only: bool
    def __init__(self, client_id: _Optional[str] = ..., user: _Optional[_Union[User, _Mapping]] = ..., create_only: bool = ...) -> None: ...

class PutUserResponse(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: User
    def __init__(self, user: _Optional[_Union[User, _Mapping]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("client_id", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    name: str
    def __init__(self, client_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteUserResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("client_id", "names")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ...) -> None: ...

class CreateApiKeyRequest(_message.Message):
    __slots__ = ("client_id", "user", "description", "lifetime_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    user: str
    description: str
    lifetime_ms: int
    def __init__(self, client_id: _Optional[str] = ..., user: _Optional[str] = ..., description: _Optional[str] = ..., lifetime_ms: _Optional[int] = ...) -> None: ...

class CreateApiKeyResponse(_message.Message):
    __slots__ = ("api_key", "secret")
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    api_key: ApiKey
    secret: str
    def __init__(self, api_key: _Optional[_Union[ApiKey, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class DeleteApiKeyRequest(_message.Message):
    __slots__ = ("client_id", "key_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    key_id: str
    def __init__(self, client_id: _Optional[str] = ..., key_id: _Optional[str] = ...) -> None: ...

class DeleteApiKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Grant(_message.Message):
    __slots__ = ("principal", "role", "resource", "expires_ms", "granted_by", "granted_ms")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_BY_FIELD_NUMBER: _ClassVar[int]
    GRANTED_MS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    role: str
    resource: str
    expires_ms: int
    granted_by: str
    granted_ms: int
    def __init__(self, principal: _Optional[str] = ..., role: _Optional[str] = ..., resource: _Optional[str] = ..., expires_ms: _Optional[int] = ..., granted_by: _Optional[str] = ..., granted_ms: _Optional[int] = ...) -> None: ...

class PutGrantRequest(_message.Message):
    __slots__ = ("client_id", "grant")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    grant: Grant
    def __init__(self, client_id: _Optional[str] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class PutGrantResponse(_message.Message):
    __slots__ = ("grant",)
    GRANT_FIELD_NUMBER: _ClassVar[int]
    grant: Grant
    def __init__(self, grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class DeleteGrantRequest(_message.Message):
    __slots__ = ("client_id", "principal", "role", "resource")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    principal: str
    role: str
    resource: str
    def __init__(self, client_id: _Optional[str] = ..., principal: _Optional[str] = ..., role: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class DeleteGrantResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: bool
    def __init__(self, missing: bool = ...) -> None: ...

class ListGrantsRequest(_message.Message):
    __slots__ = ("client_id", "principal", "resource")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    principal: str
    resource: str
    def __init__(self, client_id: _Optional[str] = ..., principal: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class ListGrantsResponse(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("name", "operations", "built_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    BUILT_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    built_in: bool
    def __init__(self, name: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., built_in: bool = ...) -> None: ...

class PutRoleRequest(_message.Message):
    __slots__ = ("client_id", "role")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    role: Role
    def __init__(self, client_id: _Optional[str] = ..., role: _Optional[_Union[Role, _Mapping]] = ...) -> None: ...

class PutRoleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteRoleRequest(_message.Message):
    __slots__ = ("client_id", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    name: str
    def __init__(self, client_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteRoleResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: bool
    def __init__(self, missing: bool = ...) -> None: ...

class ListRolesRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class ListRolesResponse(_message.Message):
    __slots__ = ("roles",)
    ROLES_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedCompositeFieldContainer[Role]
    def __init__(self, roles: _Optional[_Iterable[_Union[Role, _Mapping]]] = ...) -> None: ...

class Issuer(_message.Message):
    __slots__ = ("name", "issuer", "audience", "keys_url", "keys_ca_pem", "algorithms", "user_claim", "groups_claim")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_URL_FIELD_NUMBER: _ClassVar[int]
    KEYS_CA_PEM_FIELD_NUMBER: _ClassVar[int]
    ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    USER_CLAIM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_CLAIM_FIELD_NUMBER: _ClassVar[int]
    name: str
    issuer: str
    audience: str
    keys_url: str
    keys_ca_pem: str
    algorithms: _containers.RepeatedScalarFieldContainer[str]
    user_claim: str
    groups_claim: str
    def __init__(self, name: _Optional[str] = ..., issuer: _Optional[str] = ..., audience: _Optional[str] = ..., keys_url: _Optional[str] = ..., keys_ca_pem: _Optional[str] = ..., algorithms: _Optional[_Iterable[str]] = ..., user_claim: _Optional[str] = ..., groups_claim: _Optional[str] = ...) -> None: ...

class PutIssuerRequest(_message.Message):
    __slots__ = ("client_id", "issuer")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    issuer: Issuer
    def __init__(self, client_id: _Optional[str] = ..., issuer: _Optional[_Union[Issuer, _Mapping]] = ...) -> None: ...

class PutIssuerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteIssuerRequest(_message.Message):
    __slots__ = ("client_id", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    name: str
    def __init__(self, client_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteIssuerResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: bool
    def __init__(self, missing: bool = ...) -> None: ...

class ListIssuersRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class ListIssuersResponse(_message.Message):
    __slots__ = ("issuers",)
    ISSUERS_FIELD_NUMBER: _ClassVar[int]
    issuers: _containers.RepeatedCompositeFieldContainer[Issuer]
    def __init__(self, issuers: _Optional[_Iterable[_Union[Issuer, _Mapping]]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("user", "produce_bytes_per_second", "fetch_bytes_per_second", "requests_per_second", "connections", "set_by", "set_ms", "changes_per_minute")
    USER_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FETCH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    user: str
    produce_bytes_per_second: int
    fetch_bytes_per_second: int
    requests_per_second: int
    connections: int
    set_by: str
    set_ms: int
    changes_per_minute: int
    def __init__(self, user: _Optional[str] = ..., produce_bytes_per_second: _Optional[int] = ..., fetch_bytes_per_second: _Optional[int] = ..., requests_per_second: _Optional[int] = ..., connections: _Optional[int] = ..., set_by: _Optional[str] = ..., set_ms: _Optional[int] = ..., changes_per_minute: _Optional[int] = ...) -> None: ...

class PutQuotaRequest(_message.Message):
    __slots__ = ("client_id", "quota")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    quota: Quota
    def __init__(self, client_id: _Optional[str] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class PutQuotaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteQuotaRequest(_message.Message):
    __slots__ = ("client_id", "user")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    user: str
    def __init__(self, client_id: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class DeleteQuotaResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: bool
    def __init__(self, missing: bool = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "default_quota")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_QUOTA_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    default_quota: Quota
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., default_quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("client_id", "user", "groups", "operation", "resource")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    operation: str
    resource: str
    def __init__(self, client_id: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., operation: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("allowed", "reason", "grant")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    reason: str
    grant: Grant
    def __init__(self, allowed: bool = ..., reason: _Optional[str] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class SetPostureRequest(_message.Message):
    __slots__ = ("client_id", "posture")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    posture: Posture
    def __init__(self, client_id: _Optional[str] = ..., posture: _Optional[_Union[Posture, str]] = ...) -> None: ...

class SetPostureResponse(_message.Message):
    __slots__ = ("posture",)
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    posture: Posture
    def __init__(self, posture: _Optional[_Union[Posture, str]] = ...) -> None: ...
