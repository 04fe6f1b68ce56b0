"""Renewal of many leases over one stream to one endpoint of etcd.

A separate call per renewal costs three times as much CPU time, and a coordinator renews a lease with every heartbeat
of a group member. etcd answers the requests of a stream in order; the end of the stream fails all waiting renewals.
Newer releases check the token of the stream at each renewal.
Used by `etcd.EtcdMetastore`; belongs to its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.etcd_login import Metadata, token_refusal


class NoKeepAliveError(Exception):
    """The stream ended or stalled before the response; the outcome of the renewal is unknown."""


class KeepAliveStream:
    """Stream of renewals, opened again by the first renewal after it has ended.

    Args:
        stub: etcd's lease service at one endpoint.
    """

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def renew(self, lease_id: int, timeout: float, metadata: Metadata = ()) -> Any:
        """Renew once, and return etcd's response; `metadata` has the token of a stream that is opened for it.

        Raises:
            NoKeepAliveError: If there is no response within `timeout` seconds; the stream and all that wait on it fail.
            grpc.aio.AioRpcError: If etcd refuses the token of the stream.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run(metadata), name="keep-alive")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((lease_id, future))
        self._requests.put_nowait(stubs.rpc_pb2.LeaseKeepAliveRequest(ID=lease_id))
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            self._give_up(NoKeepAliveError("no answer in time"))
            raise NoKeepAliveError("no answer in time") from None

    async def close(self) -> None:
        """Close the stream; waiting renewals fail."""
        task = self._task
        self._give_up(NoKeepAliveError("the connection was closed"))
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _give_up(self, error: Exception) -> None:
        """Drop the stream; the next renewal opens another one."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        waiting, self._waiting, self._requests = self._waiting, deque(), asyncio.Queue()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    async def _run(self, metadata: Metadata) -> None:
        """Pass each response to the renewal that has waited longest."""
        waiting = self._waiting
        call = self._stub.LeaseKeepAlive(_all(self._requests), metadata=metadata)
        failure: Exception = NoKeepAliveError("etcd closed the stream")
        try:
            async for answer in call:
                lease_id, future = waiting.popleft()
                assert lease_id == answer.ID, (answer.ID, lease_id)
                if not future.done():
                    future.set_result(answer)
        except grpc.aio.AioRpcError as error:
            failure = NoKeepAliveError(f"{error.code().name} {error.details() or ''}".strip())
            if token_refusal(error.details()) is not None:
                failure = error
        finally:
            call.cancel()
            if self._waiting is waiting:
                self._task = None
                self._give_up(failure)


async def _all(requests: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        yield await requests.get()
