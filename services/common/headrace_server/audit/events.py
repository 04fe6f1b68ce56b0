"""Events of the audit log, in the form in which the topic stores them. Pure.

An event is a JSON object; docs/reference/audit.md is its schema, generated from `AuditEvent`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from google.protobuf import json_format

VERSION = 1
MAX_REQUEST_CHARACTERS = 4_096
MAX_REQUEST_BYTES = 16 << 10
"""Size of a request up to which it is converted, in about a millisecond."""
MAX_RESOURCES = 100
MAX_NAME_CHARACTERS = 255
"""Of a name in `resources`: a subject of the schema registry has no more, a topic or group fewer."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """What one caller did or was refused."""

    time_ms: int
    """Clock of the server, in milliseconds since 1970; also the record's timestamp."""
    server: str
    """Such as `broker-1`."""
    user: str
    """Empty for a caller without an identity."""
    identified_by: str
    """`API key`, `token`, `certificate`, `server`, or empty."""
    address: str
    """Address of the caller, without its port; an IPv6 network of 64 bits."""
    method: str
    """Name of the RPC."""
    kind: str
    """`act`: an administrative act, served or failed. `refusal`: a call, topic or group that was refused. `data`: calls
    that read or wrote a topic whose setting `audit` asks for them. `lost`: events that were dropped because the topic
    could not be written.
    """
    error: str = ""
    """Code of the error with which an act failed as a whole, or `CANCELLED` if its caller left or its deadline passed
    before it ended: then it may have been applied. Of a refusal `NOT_AUTHORIZED`, or `UNAUTHENTICATED` if the proof of
    identity was not accepted; else empty.
    """
    reason: str = ""
    """Of a refusal: the missing right, such as `write topic:orders`, or `identity`, or why a proof was not accepted."""
    resources: tuple[str, ...] = ()
    """Topics and groups of the request and its response, such as `["topic:orders"]`; at most 100, and of a longer name
    than any resource has the first 255 characters. Empty if a record combines data calls on many topics.
    """
    request: Any = None
    """The request as JSON; its first 4,096 characters as text if it is longer, its size if it has more than 16 KiB."""
    request_id: str = ""
    """Id of the operation, as in the logs of clients and servers."""
    count: int = 1
    """Number of refusals or data calls that the record combines, or of lost events; else 1."""
    version: int = field(default=VERSION, kw_only=True)
    """1; rises with an incompatible change. A new field is none."""

    def to_json(self) -> bytes:
        """Return the value of the record."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()


def describe_request(request: Any) -> Any:
    """Return a request as JSON values, its beginning as text if it is long, its size if it is too long to convert."""
    if (size := request.ByteSize()) > MAX_REQUEST_BYTES:
        return f"{size} bytes"
    found = json_format.MessageToDict(request, preserving_proto_field_name=True)
    text = json.dumps(found, separators=(",", ":"))
    return found if len(text) <= MAX_REQUEST_CHARACTERS else text[:MAX_REQUEST_CHARACTERS]


def resources_of(*messages: Any) -> tuple[str, ...]:
    """Return what a request and its response name, such as `topic:orders`, each once, at most `MAX_RESOURCES`.

    A name that is too long for any resource is cut.
    """
    found: dict[str, None] = {}
    for message in messages:
        for name in () if message is None else _names(message):
            found[name] = None
            if len(found) >= MAX_RESOURCES:
                return tuple(found)
    return tuple(found)


def _names(message: Any) -> Iterator[str]:
    for described, value in message.ListFields():
        if described.name == "group_id":
            yield f"group:{_cut(value)}"
        elif described.name == "group_ids":
            yield from (f"group:{_cut(each)}" for each in value)
        elif described.name == "subject" and message.DESCRIPTOR.name == "SchemaRegistryAct":
            yield f"schema:{_cut(value)}"
        elif described.name == "name" and message.DESCRIPTOR.name in _TOPIC_MESSAGES:
            yield f"topic:{_cut(value)}"
        elif described.message_type is not None and not described.message_type.GetOptions().map_entry:
            for each in value if described.is_repeated else [value]:
                yield from _names(each)


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}..."


_TOPIC_MESSAGES = frozenset(
    {
        "TopicRef",
        "NewTopic",
        "TopicResult",
        "CreateTopicResult",
        "TopicDeleteRecordsResult",
        "PartitionChangeResult",
        "UnclaimedLog",
    }
)
"""Messages whose field `name` is that of a topic."""
