from headrace.v1 import handshake_pb2 as _handshake_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("client_id", "handshake", "session")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    handshake: _handshake_pb2.Handshake
    session: str
    def __init__(self, client_id: _Optional[str] = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ..., session: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("answered_by", "handshake", "max_requests")
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    answered_by: str
    handshake: _handshake_pb2.Handshake
    max_requests: int
    def __init__(self, answered_by: _Optional[str] = ..., handshake: _Optional[_Union[_handshake_pb2.Handshake, _Mapping]] = ..., max_requests: _Optional[int] = ...) -> None: ...
