"""What goes to etcd, call by call: writes once, reads of the newest, lists in pages of one revision."""

import asyncio

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from headrace_server.metastore import etcd
from headrace_server.metastore.api import MetastoreUnknownOutcomeError, Put, VersionIs

RPC = etcd.stubs.rpc_pb2
PAGES = ((b"p/1", b"p/2"), (b"p/3",))


class KeyValueService:
    """etcd's, with other revisions at each call; `calls` are the requests that came."""

    def __init__(self):
        self.calls = []

    async def Range(self, request, timeout):
        self.calls.append(request)
        page = PAGES[len(self.calls) - 1]
        keys = [etcd.stubs.kv_pb2.KeyValue(key=key) for key in page]
        return RPC.RangeResponse(header={"revision": 6 + len(self.calls)}, kvs=keys, more=page is PAGES[0])

    async def Txn(self, request, timeout):
        self.calls.append(request)
        raise AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, Metadata(), Metadata(), "etcdserver: no space")


@pytest.fixture
def service(monkeypatch):
    service = KeyValueService()
    monkeypatch.setattr(etcd.stubs, "KVStub", lambda channel: service)
    return service


def run(call):
    async def whole():
        store = etcd.EtcdMetastore(["127.0.0.1:1", "127.0.0.1:2"])
        try:
            return await call(store)
        finally:
            await store.close()

    return asyncio.run(whole())


def test_a_write_without_a_good_answer_is_unknown_and_not_sent_again(service):
    """H78, H79: also where etcd says that it has no room: what it says then it may have applied."""
    with pytest.raises(MetastoreUnknownOutcomeError):
        run(lambda store: store.txn([VersionIs("k", 0)], [Put("k", b"v")]))
    assert len(service.calls) == 1


def test_a_list_is_read_in_pages_of_one_revision(service):
    """H85: each behind the one before; the revision of the whole is that of the first."""
    listed = run(lambda store: store.range("p/"))
    assert [each.key for each in listed.key_values] == ["p/1", "p/2", "p/3"]
    assert listed.revision == 7
    assert [(call.key, call.limit, call.revision) for call in service.calls] == [
        (b"p/", 1_000, 0),
        (b"p/2\0", 1_000, 7),
    ]


@pytest.mark.parametrize("read", [lambda store: store.get("p/1"), lambda store: store.range("p/")])
def test_reads_are_linearizable(service, read):
    """H82: no member answers from what it knows alone."""
    run(read)
    assert [call.serializable for call in service.calls] == [False] * len(service.calls) != []
