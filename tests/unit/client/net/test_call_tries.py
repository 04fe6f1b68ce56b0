"""Both classes of clients name the try of a call that they may repeat at another coordinator."""

import asyncio
from concurrent import futures

import grpc
import pytest
from headrace import Admin, aio
from headrace.client.net.bootstrap_client import own_handshake
from headrace.v1 import cluster_pb2
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry


class Coordinator(grpc.GenericRpcHandler):
    """Answers metadata, in which it is the one coordinator, and any other call with an empty message."""

    def __init__(self) -> None:
        self.address = ""
        self.tries: dict[str, list[CallTry | None]] = {}

    def service(self, handler_call_details):
        method = handler_call_details.method.rpartition("/")[2]
        named = dict(handler_call_details.invocation_metadata).get(CALL_TRY_KEY, "")
        self.tries.setdefault(method, []).append(CallTry.parse(named))
        answer = cluster_pb2.GetMetadataResponse(handshake=own_handshake(), coordinators=[self.address], cluster_id="c")
        data = answer.SerializeToString() if method == "GetMetadata" else b""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: data)


@pytest.fixture
def coordinator():
    handler = Coordinator()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(handler,))
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield handler
    server.stop(0)


def drain(address):
    with Admin(bootstrap_servers=address, transport="grpc") as admin:
        admin.drain_broker(1)
        admin.describe_cluster()


def adrain(address):
    async def run():
        async with aio.Admin(bootstrap_servers=address, transport="grpc") as admin:
            await admin.drain_broker(1)
            await admin.describe_cluster()

    asyncio.run(run())


@pytest.mark.parametrize("call", [drain, adrain])
def test_a_change_names_its_try_and_a_question_does_not(coordinator, call):
    call(coordinator.address)
    (named,) = coordinator.tries["DrainBroker"]
    assert named.number == 0
    assert set(coordinator.tries["DescribeCluster"]) == {None}
