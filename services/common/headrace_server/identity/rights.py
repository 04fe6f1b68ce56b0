"""Operations, resources, roles, and the rights that grants give. Pure.

Grants only allow; there are no exceptions from them, so that one look-up decides, and taking a grant away never gives a
right. A grant on the cluster covers all its topics, groups and schemas, a prefix all names that begin with it. Names
that begin with `__` are the cluster's own topics: only grants that name them, or administrators, reach these, and only
servers of the cluster write them. The table of mirrors is reached in the same way, and written by clients: a grant of
all topics must not be one of the credentials of their workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntFlag
from types import MappingProxyType

from headrace.wire.errors import InvalidRequestError
from headrace.wire.topic_names import MIRRORS_TABLE, RESERVED_PREFIX

MAX_RESOURCE_CHARACTERS = 300


class Operation(IntFlag):
    """What a right allows; in grants and roles by its name in lower case."""

    DESCRIBE = 1
    """See that it exists, its settings and its state."""
    READ = 2
    """Read a topic; be a member of a group and commit its offsets."""
    WRITE = 4
    CREATE = 8
    DELETE = 16
    """Delete a topic, its records, a group."""
    ALTER = 32
    """Change the settings or the number of partitions of a topic."""
    OPERATE = 64
    """Of the cluster: drain, move, elect, log levels."""
    ADMIN = 128
    """Of the cluster: everything, users and grants included."""


EVERYTHING = Operation(255)
_EVERYTHING, _ADMIN, _WRITE = int(EVERYTHING), int(Operation.ADMIN), int(Operation.WRITE)
OWNER = "owner"
"""Role that the creator of a topic gets, until the topic is deleted."""
ROLES: Mapping[str, Operation] = MappingProxyType(
    {
        "reader": Operation.DESCRIBE | Operation.READ,
        "writer": Operation.DESCRIBE | Operation.WRITE,
        "developer": EVERYTHING & ~(Operation.OPERATE | Operation.ADMIN),
        OWNER: Operation.DESCRIBE | Operation.READ | Operation.WRITE | Operation.ALTER | Operation.DELETE,
        "monitor": Operation.DESCRIBE,
        "operator": Operation.DESCRIBE | Operation.OPERATE,
        "admin": EVERYTHING,
    }
)
"""Roles that every cluster has."""


class ResourceKind(Enum):
    """Kind of a resource. A table is a topic."""

    __hash__ = object.__hash__  # That of an `Enum` takes ten times as long, in every look-up.

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    SCHEMA = "schema"
    """A subject of the schema registry."""


NAMED = (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.SCHEMA)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Resources of a grant: the cluster, or one name or all names with a prefix, of one kind or of each."""

    kinds: tuple[ResourceKind, ...]
    name: str = ""
    is_prefix: bool = False


def parse_pattern(text: str) -> Pattern:
    """Return the pattern of `cluster`, of a name or prefix of one kind, as `topic:NAME` and `schema:PREFIX*`, or of a
    prefix of every kind, as `PREFIX*`.

    Raises:
        InvalidRequestError: If the text is none of them.
    """
    if text == ResourceKind.CLUSTER.value:
        return Pattern((ResourceKind.CLUSTER,))
    before, colon, after = text.partition(":")
    is_of_kind = colon and before in {kind.value for kind in NAMED}
    kinds, name = ((ResourceKind(before),), after) if is_of_kind else (NAMED, text)
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    if len(text) > MAX_RESOURCE_CHARACTERS or not text.isprintable() or "*" in name or not (name or is_prefix):
        raise _no_resource(text)
    if len(kinds) > 1 and not is_prefix:
        raise _no_resource(text)
    return Pattern(kinds, name, is_prefix)


def parse_operations(name: str, roles: Mapping[str, Operation]) -> Operation:
    """Return the operations of a role or operation; without `roles`, of an operation.

    Raises:
        InvalidRequestError: If there is none of this name.
    """
    found = roles.get(name, _OPERATIONS.get(name))
    if found is None:
        raise InvalidRequestError(
            f"{name[:64]!r} is {'no role and ' if roles else ''}no operation",
            action=f"Name one of {', '.join(dict.fromkeys((*sorted(roles), *_OPERATIONS)))}.",
        )
    return found


def operation_names(operations: Operation) -> list[str]:
    """Return the names of operations."""
    return [name for name, operation in _OPERATIONS.items() if operation & operations]


class Rights:
    """Rights of one user: what its grants allow together.

    A look-up takes time for each length of a prefix, and not for each grant. It stores nothing: callers choose names.
    """

    __slots__ = ("_cluster", "_lengths", "_names", "_prefixes", "_writes_reserved")

    def __init__(self, grants: Iterable[tuple[Pattern, Operation]] = (), *, is_server: bool = False) -> None:
        self._writes_reserved = is_server
        self._cluster = 0  # Operations as integers: flags take a microsecond for each `|` and `&`.
        self._names: dict[ResourceKind, dict[str, int]] = {kind: {} for kind in ResourceKind}
        self._prefixes: dict[ResourceKind, dict[str, int]] = {kind: {} for kind in ResourceKind}
        for pattern, operations in grants:
            for kind in pattern.kinds:
                if kind is ResourceKind.CLUSTER:
                    self._cluster |= int(operations)
                    continue
                found = (self._prefixes if pattern.is_prefix else self._names)[kind]
                found[pattern.name] = found.get(pattern.name, 0) | int(operations)
        if self._cluster & _ADMIN:
            self._cluster = _EVERYTHING
        self._lengths = {kind: sorted(set(map(len, found))) for kind, found in self._prefixes.items()}

    def allow(self, operation: Operation, kind: ResourceKind, name: str = "") -> bool:
        """Return whether an operation on one resource is allowed; the cluster has no name."""
        if kind is ResourceKind.CLUSTER:
            return bool(self._cluster & int(operation))
        return bool(self._allowed(kind, name, self._names[kind].get(name, 0)) & int(operation))

    def allow_all(self, operation: Operation, kind: ResourceKind, prefix: str) -> bool:
        """Return whether an operation is allowed on every resource whose name begins with `prefix`."""
        return bool(self._allowed(kind, prefix, 0) & int(operation))

    def _allowed(self, kind: ResourceKind, name: str, by_name: int) -> int:
        """Return what the cluster and prefixes allow together with `by_name`; no writes of the cluster's own topics,
        unless this is a server.
        """
        least = _least_prefix(kind, name)
        allowed = by_name if least and self._cluster != _EVERYTHING else by_name | self._cluster
        prefixes, characters = self._prefixes[kind], len(name)
        for length in self._lengths[kind]:
            if length > characters:
                break
            if length >= least:
                allowed |= prefixes.get(name[:length], 0)
        is_closed = kind is ResourceKind.TOPIC and name.startswith(RESERVED_PREFIX) and not self._writes_reserved
        return allowed & ~_WRITE if is_closed else allowed


def _least_prefix(kind: ResourceKind, name: str) -> int:
    """Return the least length of a prefix whose grants reach one of the cluster's own topics; 0 for other resources."""
    if kind is not ResourceKind.TOPIC:
        return 0
    if name.startswith(RESERVED_PREFIX):
        return len(RESERVED_PREFIX)
    return len(name) if name == MIRRORS_TABLE else 0


def _no_resource(text: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{text[:64]!r} is no resource",
        action="Write cluster, topic:NAME, group:NAME, schema:NAME, or a prefix as topic:team.* or team.*.",
    )


_OPERATIONS = {operation.name.lower(): operation for operation in Operation if operation.name}
