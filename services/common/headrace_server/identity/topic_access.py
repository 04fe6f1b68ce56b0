"""Topics that a request names, for the rights of its caller."""

from __future__ import annotations

import re
from functools import partial

from headrace.v1 import cluster_pb2, topics_pb2
from headrace.wire.errors import UnknownTopicIdError

from headrace_server.identity.gate import access
from headrace_server.identity.rights import Operation, ResourceKind
from headrace_server.metadata_view import ClusterView, Topic

_WILDCARD = re.compile(r"[*?\[]")


def resolve_topic(view: ClusterView, reference: topics_pb2.TopicRef, operation: Operation) -> Topic:
    """Return the topic that a request names, for an operation on it.

    Raises:
        NotAuthorizedError: If the caller has no right to it. By name also if there is no such topic.
        HeadraceError: As `ClusterView.resolve`. An id whose topic the caller may not see is an unknown id.
    """
    current = access()
    if reference.WhichOneof("topic") == "name":
        current.require(operation, ResourceKind.TOPIC, reference.name)
        return view.resolve(reference)
    topic = view.resolve(reference)
    if current.sees(ResourceKind.TOPIC, topic.name):
        current.require(operation, ResourceKind.TOPIC, topic.name)
    elif not current.allows(operation, ResourceKind.TOPIC, topic.name):
        raise UnknownTopicIdError(f"there is no topic with id {reference.topic_id.hex()}")
    return topic


def require_topic(view: ClusterView, reference: topics_pb2.TopicRef, operation: Operation) -> None:
    """Check the right to a topic that is then looked up in etcd.

    Raises:
        NotAuthorizedError, UnknownTopicIdError: As `resolve_topic`. An id that the view does not know, because it is
            stale, may be any topic's.
    """
    if reference.WhichOneof("topic") == "name":
        access().require(operation, ResourceKind.TOPIC, reference.name)
    elif view.topic_by_id(reference.topic_id) is not None:
        resolve_topic(view, reference, operation)
    elif not access().allows_all(operation, ResourceKind.TOPIC, ""):
        raise UnknownTopicIdError(f"there is no topic with id {reference.topic_id.hex()}")


def literal_prefix(pattern: str) -> str:
    """Return the part of a shell pattern before its first wildcard: every name that it matches begins with it."""
    return _WILDCARD.split(pattern, maxsplit=1)[0]


def is_shown(name: str) -> bool:
    """Return whether the caller sees a topic in lists."""
    return access().sees(ResourceKind.TOPIC, name)


def describe_metadata(
    view: ClusterView, request: cluster_pb2.GetMetadataRequest, answered_by: str
) -> cluster_pb2.GetMetadataResponse:
    """Return the response to `GetMetadata`; see `ClusterView.metadata`."""
    resolve = partial(resolve_topic, view, operation=Operation.DESCRIBE)
    return view.metadata(request, answered_by, resolve, is_shown)
