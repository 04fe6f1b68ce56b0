"""How etcd's members are summed up for the metrics."""

from __future__ import annotations

import asyncio
import dataclasses

import grpc
import pytest
from headrace_server.metastore.api import MemberStatus
from headrace_server.metastore.etcd_status import describe_member, effective_quota_bytes, read_published

GIB = 1 << 30


@pytest.mark.parametrize(
    ("said", "expected"),
    [((), 2 * GIB), ((0, 0, 0), 2 * GIB), ((8 * GIB,) * 3, 8 * GIB), ((0, 8 * GIB, 4 * GIB), 4 * GIB)],
)
def test_the_quota_is_the_least_reported_one_or_etcds_default(said: tuple[int, ...], expected: int) -> None:
    """Members before 3.6 say 0: then etcd's default counts, and in the midst of an upgrade what the others say."""
    members = [MemberStatus(f"e{number}:2379", quota_bytes=quota) for number, quota in enumerate(said)]
    assert effective_quota_bytes(members) == expected


PAGES = {
    "/metrics": b"""\
# TYPE etcd_mvcc_db_total_size_in_bytes gauge
etcd_mvcc_db_total_size_in_bytes 1.7825792e+07
etcd_mvcc_db_total_size_in_use_in_bytes 16384
etcd_server_is_learner 1
etcd_server_quota_backend_bytes 2.147483648e+09
etcd_server_version{server_version="3.6.9"} 1
""",
    "/health": b'{"health":"false","reason":"ALARM NOSPACE"}',
}


async def refuse():
    raise grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), grpc.aio.Metadata())


async def answer():
    return None


async def described(pages: dict[str, bytes]) -> MemberStatus:
    """The status of a member that answers Status to root only, without its endpoint and the time of its answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        if path in pages:
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + pages[path])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        endpoint = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await describe_member(endpoint, refuse, answer, lambda: read_published(endpoint, None, 5))
        assert found.endpoint == endpoint
        assert found.answered_seconds > 0
        return dataclasses.replace(found, endpoint="", answered_seconds=0.0)


async def test_what_a_member_tells_to_root_only_is_read_from_its_pages() -> None:
    expected = MemberStatus("", "", "3.6.9", 0.0, 17825792, 16384, 2 * GIB, True, True, ("NOSPACE",))
    assert await described(PAGES) == expected


async def test_a_member_without_pages_is_described_without_its_size() -> None:
    """`--listen-client-http-urls` has moved them to another port, where this process may have no way."""
    assert await described({}) == MemberStatus("", has_leader=True)
    assert await read_published("127.0.0.1:1", None, 5) == MemberStatus("127.0.0.1:1")
