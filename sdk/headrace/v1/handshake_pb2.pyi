from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Handshake(_message.Message):
    __slots__ = ("release", "capabilities")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    release: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, release: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...
