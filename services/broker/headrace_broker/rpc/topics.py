"""A topic that a request names, and its place in the answer; for calls that answer partition by partition."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from headrace.v1 import topics_pb2
from headrace.wire.errors import HeadraceError
from headrace_server.metadata_view import ClusterView, Topic

ResultT_co = TypeVar("ResultT_co", covariant=True)


class Results(Protocol[ResultT_co]):
    """The repeated field of an answer that has an element a topic."""

    def add(self, **fields: Any) -> ResultT_co:
        """Append an element."""


def answer_topic(
    view: ClusterView, reference: topics_pb2.TopicRef, results: Results[ResultT_co]
) -> tuple[Topic | None, HeadraceError | None, ResultT_co]:
    """Return the topic, or why it cannot be served, and the element of the answer, which names it if it is known."""
    try:
        topic = view.resolve(reference)
    except HeadraceError as error:
        return None, error, results.add(name=reference.name, topic_id=reference.topic_id)
    return topic, None, results.add(name=topic.name, topic_id=topic.topic_id)
