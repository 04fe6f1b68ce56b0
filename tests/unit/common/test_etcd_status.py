"""How etcd's members are summed up for the metrics."""

from __future__ import annotations

import pytest
from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_status import effective_quota_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("said", "expected"),
    [((), 2 * GIB), ((0, 0, 0), 2 * GIB), ((8 * GIB,) * 3, 8 * GIB), ((0, 8 * GIB, 4 * GIB), 4 * GIB)],
)
def test_the_quota_is_the_least_reported_one_or_etcds_default(said: tuple[int, ...], expected: int) -> None:
    """Members before 3.6 say 0: then etcd's default counts, and in the midst of an upgrade what the others say."""
    members = [MemberStatus(f"e{number}:2379", quota_bytes=quota) for number, quota in enumerate(said)]
    assert effective_quota_bytes(members) == expected
