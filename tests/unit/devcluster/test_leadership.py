"""What `status` says of the partitions follows from what the coordinators say."""

from headrace.client.admin.rpc import ClusterDescription, PartitionDescription, TopicDescription
from headrace_devcluster.leadership import PartitionSummary, ask_for_leadership, sentence, summarize
from headrace_devcluster.ports import ReservedPort


def topic(name: str, *leaders: int) -> TopicDescription:
    parts = [PartitionDescription(number, leader, 3, (1, 2), (1,), ()) for number, leader in enumerate(leaders)]
    return TopicDescription(name, b"\0" * 16, tuple(parts), 1 << 20)


def cluster(**counts: int) -> ClusterDescription:
    fixed = {"cluster_id": "c", "generation": 1, "format_version": 1, "controller_id": "a", "controller_epoch": 1}
    rest = {"brokers": (), "coordinators": (), "etcd_version": "3.5", "revision": 9}
    return ClusterDescription(**fixed, **rest, **counts)  # type: ignore[arg-type]


def test_leaders_are_counted_and_those_without_are_not() -> None:
    """Each broker's partitions are counted over all topics; a partition without a leader counts for none."""
    described = cluster(topics=2, partitions=5, offline_partitions=1, under_replicated_partitions=2)
    found = summarize(described, [topic("t", 2, 1, 2), topic("u", 2, -1)])
    assert found == PartitionSummary(2, 5, 1, 2, {1: 1, 2: 3})
    assert sentence(found) == ("5 partitions of 2 topics: 1 without a leader, 2 under-replicated")


def test_sentence_reports_unreachable_coordinators(monkeypatch) -> None:
    """Without a listener there are no figures, and no error either."""
    monkeypatch.setattr("headrace_devcluster.leadership.TIMEOUT_SECONDS", 0.1)
    port = ReservedPort()  # Bound, without a listener.
    assert ask_for_leadership(f"127.0.0.1:{port}") is None
    assert "do not respond" in sentence(None)
