"""Steps of the replacement of the cluster's secret."""

from headrace_coordinator.core.cluster_secrets import next_secrets
from headrace_server.internal_v1 import metadata_pb2

OLD, NEW = b"o" * 32, b"n" * 32


def test_two_secrets_are_accepted_until_the_old_one_is_not_used_any_more():
    """A run that was interrupted after any step continues with the next one."""
    steps = [metadata_pb2.ClusterSecrets(used=OLD)]
    for _ in range(3):
        steps.append(next_secrets(steps[-1], NEW))
    assert [(step.used, step.next, step.previous) for step in steps[1:]] == [
        (OLD, NEW, b""),
        (NEW, b"", OLD),
        (NEW, b"", b""),
    ]
