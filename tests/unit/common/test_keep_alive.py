"""One stream renews many leases: each caller gets its own answer, a stream that ends or stalls is replaced."""

import asyncio

import grpc
import grpc.aio
import pytest
from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.keep_alive import KeepAliveStream, NoKeepAliveError


class LeaseService:
    """etcd's lease service with a hand on what it answers; `streams` are the calls that were made."""

    def __init__(self):
        self.streams = []

    def LeaseKeepAlive(self, requests, metadata):
        self.streams.append(stream := Stream(requests))
        stream.metadata = metadata
        return stream


class Stream:
    def __init__(self, requests):
        self.requests = requests
        self.answers = asyncio.Queue()
        self.is_cancelled = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        answer = await self.answers.get()
        if answer is None:
            raise StopAsyncIteration
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self):
        self.is_cancelled = True

    async def take(self):
        """The lease of the next request."""
        return (await anext(self.requests)).ID

    def answer(self, lease_id):
        self.answers.put_nowait(stubs.rpc_pb2.LeaseKeepAliveResponse(ID=lease_id, TTL=lease_id))


@pytest.fixture
def service():
    return LeaseService()


async def renewals(keep_alive, *lease_ids, timeout_s=10.0):
    """Renewals under way, sent in this order."""
    tasks = [asyncio.create_task(keep_alive.renew(lease_id, timeout_s)) for lease_id in lease_ids]
    await asyncio.sleep(0)
    return tasks


async def test_all_renewals_share_a_stream(service):
    keep_alive = KeepAliveStream(service)
    tasks = await renewals(keep_alive, 1, 2, 3)
    await asyncio.sleep(0)
    (stream,) = service.streams
    for _ in tasks:
        stream.answer(await stream.take())
    assert [(await task).TTL for task in tasks] == [1, 2, 3]
    (again,) = await renewals(keep_alive, 4)
    stream.answer(await stream.take())
    assert (await again).TTL == 4
    await keep_alive.close()
    assert len(service.streams) == 1
    assert stream.is_cancelled


async def test_a_caller_that_gives_up_shifts_no_other_answer(service):
    keep_alive = KeepAliveStream(service)
    first, second = await renewals(keep_alive, 1, 2)
    await asyncio.sleep(0)
    first.cancel()
    (stream,) = service.streams
    for _ in range(2):
        stream.answer(await stream.take())
    assert (await second).TTL == 2
    await keep_alive.close()


async def test_the_end_of_a_stream_is_no_answer_and_the_next_renewal_opens_another(service):
    keep_alive = KeepAliveStream(service)
    tasks = await renewals(keep_alive, 1, 2)
    await asyncio.sleep(0)
    service.streams[0].answers.put_nowait(None)
    for task in tasks:
        with pytest.raises(NoKeepAliveError):
            await task
    (again,) = await renewals(keep_alive, 3)
    await asyncio.sleep(0)
    stream = service.streams[1]
    stream.answer(await stream.take())
    assert (await again).TTL == 3
    await keep_alive.close()


async def test_a_stalled_stream_is_closed_with_all_that_waits_on_it(service):
    keep_alive = KeepAliveStream(service)
    (patient,) = await renewals(keep_alive, 1)
    (hasty,) = await renewals(keep_alive, 2, timeout_s=0.01)
    for task in (hasty, patient):
        with pytest.raises(NoKeepAliveError):
            await task
    (again,) = await renewals(keep_alive, 3)
    await asyncio.sleep(0)
    assert service.streams[0].is_cancelled
    stream = service.streams[1]
    stream.answer(await stream.take())
    assert (await again).TTL == 3
    await keep_alive.close()


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", grpc.aio.AioRpcError),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", grpc.aio.AioRpcError),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", NoKeepAliveError),
    ],
)
async def test_a_refused_token_reaches_the_caller_who_sends_again_with_another(service, code, details, expected):
    """Its error is that of the call, as `EtcdLogin.send` expects it; the next renewal opens a stream with its token."""
    keep_alive = KeepAliveStream(service)
    (refused,) = await renewals(keep_alive, 1)
    await asyncio.sleep(0)
    service.streams[0].answers.put_nowait(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details))
    with pytest.raises(expected):
        await refused
    again = asyncio.create_task(keep_alive.renew(2, 10.0, (("token", "new"),)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stream = service.streams[1]
    assert (service.streams[0].metadata, stream.metadata) == ((), (("token", "new"),))
    stream.answer(await stream.take())
    assert (await again).TTL == 2
    await keep_alive.close()
