"""Lookup of a topic in a request and its result element, for calls with results per partition."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from headrace.partition.topic_configs import AuditedCalls
from headrace.v1 import topics_pb2
from headrace.wire.errors import HeadraceError
from headrace_server.identity.gate import access
from headrace_server.identity.rights import Operation
from headrace_server.identity.topic_access import resolve_topic
from headrace_server.metadata_view import ClusterView, Topic

ResultT_co = TypeVar("ResultT_co", covariant=True)


_AUDITED = {
    Operation.READ: (AuditedCalls.READ, AuditedCalls.ALL),
    Operation.WRITE: (AuditedCalls.WRITE, AuditedCalls.ALL),
}
"""Values of the setting `audit` that ask for the calls of an operation."""


class Results(Protocol[ResultT_co]):
    """Repeated field of a response with one element per topic."""

    def add(self, **fields: Any) -> ResultT_co:
        """Append an element."""


def find_topic(view: ClusterView, reference: topics_pb2.TopicRef, operation: Operation) -> Topic:
    """Return the topic that a request names. Notes a data call for the audit log if its setting `audit` asks for it.

    Raises:
        HeadraceError: As `resolve_topic`: also the caller's lack of a right to `operation`.
    """
    topic = resolve_topic(view, reference, operation)
    if topic.config.audit is not AuditedCalls.NONE and topic.config.audit in _AUDITED.get(operation, ()):
        access().note_data(topic.name)
    return topic


def answer_topic(
    view: ClusterView, reference: topics_pb2.TopicRef, results: Results[ResultT_co], operation: Operation
) -> tuple[Topic | None, HeadraceError | None, ResultT_co]:
    """Return the topic as `find_topic`, or the error, and the new element of the response, which names the topic if it
    is known.
    """
    try:
        topic = find_topic(view, reference, operation)
    except HeadraceError as error:
        return None, error, results.add(name=reference.name, topic_id=reference.topic_id)
    return topic, None, results.add(name=topic.name, topic_id=topic.topic_id)
