"""Parsing of requests within the limits of their row in `methods.METHODS`.

The size is checked before parsing. Then the elements of all repeated fields are counted, which protobuf does in C,
before Python code iterates over them. A topic must not be named twice if the handler does work per name. Parsing costs
up to 20 ms per MiB: a caller may have `REFUSED_BYTES` per second of large requests rejected, and further large ones
are not parsed. Used by `admission` and by the native protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from headrace.wire.errors import InvalidRequestError
from headrace.wire.zero_copy import SplicedMessage

from headrace_server.methods import MIB, Method
from headrace_server.places import Rates

LARGE_BYTES = MIB // 16
"""Maximum size of a request that is parsed in about a millisecond in any case."""
REFUSED_BYTES = MIB // 4
PENALTY_SECONDS = 0.5
"""Delay of the error for a request that was not parsed, which slows down a caller that retries at once."""
MAX_CLIENT_ID_CHARACTERS = 256

Counter = Callable[[Any, int], int]
"""Returns the total number of elements in repeated fields of a message; stops above the second argument."""


def check_client_id(client_id: str) -> None:
    """Check the name that a client gives itself.

    Raises:
        InvalidRequestError: If it is too long.
    """
    if len(client_id) > MAX_CLIENT_ID_CHARACTERS:
        raise InvalidRequestError(f"the client id has more than {MAX_CLIENT_ID_CHARACTERS} characters")


class RequestReader:
    """Parser of the requests of one method."""

    def __init__(self, name: str, method: Method, parse: Callable[[bytes], Any], request_type: Any) -> None:
        """`parse` returns a message of `request_type`, or a `SplicedMessage` around one."""
        self.name = name
        self._method = method
        self._parse = parse
        self._type_name = request_type.name
        self._count = item_counter(request_type)
        self._topics = _topic_names(request_type)
        self._refused = Rates()

    def read(self, data: bytes, peer: str) -> Any:
        """Parse one request of `peer`.

        Raises:
            InvalidRequestError: If it is too large, has too many elements, names a topic twice, or is malformed.
            ThrottledError: If it is large, and too many bytes of the peer's earlier requests were rejected.
        """
        method = self._method
        if len(data) > method.max_bytes:
            raise InvalidRequestError(
                f"the request has {len(data)} bytes, and {self.name} takes at most {method.max_bytes}",
                action="Send several smaller requests.",
            )
        if len(data) <= LARGE_BYTES:
            return self._read(data)
        refused = f"refused requests of {self.name}"
        self._refused.check(peer, refused, REFUSED_BYTES, "bytes")
        try:
            return self._read(data)
        except InvalidRequestError:
            self._refused.charge(peer, refused, len(data))
            raise

    def _read(self, data: bytes) -> Any:
        try:
            request = self._parse(data)
        except DecodeError as error:
            raise InvalidRequestError(
                f"the request of {len(data)} bytes is no {self._type_name}",
                action="Send the message that the proto of this method names.",
            ) from error
        message = request.message if type(request) is SplicedMessage else request
        max_items = self._method.max_items
        if self._count(message, max_items) > max_items:
            raise InvalidRequestError(
                f"the request names more than {max_items} items, the limit of {self.name}",
                action="Send several smaller requests.",
            )
        if self._topics is not None:
            self._topics(message.topics)
        return request


def item_counter(message_type: Descriptor) -> Counter:
    """Return a counter of the elements of all repeated fields of a message, at every depth."""
    return _build_counter(message_type, {}) or _count_nothing


def _count_nothing(_message: Any, _limit: int) -> int:
    return 0


def _build_counter(message_type: Descriptor, known: dict[str, Counter]) -> Counter | None:
    """Return a counter, or `None` without repeated fields. `known` are the counters of the enclosing types."""
    if message_type.full_name in known:
        return known[message_type.full_name]

    def itself(message: Any, limit: int) -> int:
        return count(message, limit)

    known = known | {message_type.full_name: itself}
    repeated: list[tuple[str, Counter | None]] = []
    single: list[tuple[str, Counter]] = []
    for field in message_type.fields:
        inner = None if field.message_type is None else _inner_counter(field, known)
        if field.is_repeated:
            repeated.append((field.name, inner))
        elif inner is not None:
            single.append((field.name, inner))

    def count(message: Any, limit: int) -> int:
        total = 0
        for name, _ in repeated:
            total += len(getattr(message, name))
        if total > limit:
            return total
        for name, inner in repeated:
            if inner is not None:
                for element in getattr(message, name):
                    total += inner(element, limit - total)
                    if total > limit:
                        return total
        for name, inner in single:
            if message.HasField(name):
                total += inner(getattr(message, name), limit - total)
        return total

    return count if repeated or single else None


def _inner_counter(field: FieldDescriptor, known: dict[str, Counter]) -> Counter | None:
    assert field.message_type is not None
    if field.message_type.GetOptions().map_entry:
        return None  # Its entries are counted as elements; the maps of this project contain only scalars.
    return _build_counter(field.message_type, known)


def _topic_names(message_type: Descriptor) -> Callable[[Any], None] | None:
    """Return a check that no topic is named twice, or `None` if the message names no topics."""
    field = message_type.fields_by_name.get("topics")
    if field is None or field.message_type is None:
        return None
    names = field.message_type.fields_by_name
    if field.message_type.name == "TopicRef":
        return lambda topics: _check_once(topics, lambda topic: topic.topic_id or topic.name)
    if "topic" in names:
        return lambda topics: _check_once(topics, lambda each: each.topic.topic_id or each.topic.name)
    return None  # Requests of groups may name it repeatedly, because they do no work per topic.


def _check_once(topics: Any, key: Callable[[Any], bytes | str]) -> None:
    if len(topics) < 2:
        return
    seen: set[bytes | str] = set()
    for topic in topics:
        name = key(topic)
        if name and name in seen:
            shown = name.hex() if isinstance(name, bytes) else name
            raise InvalidRequestError(
                f"the request names the topic {shown[:249]!r} twice",
                action="Name each topic once, with all its partitions.",
            )
        seen.add(name)
