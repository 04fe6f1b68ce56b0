"""Calls whose request arrives late are served by what is known of their caller then: a change of rights ends them."""

import asyncio

import grpc
import pytest
from headrace.v1 import auth_pb2, broker_pb2, cluster_pb2, native_pb2
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError, from_rpc_error
from headrace.wire.frames import PREFACE, Kind, MethodCode, frame_head
from headrace_server.identity.callers import ANONYMOUS
from headrace_server.methods import METHODS

from tests.unit.common.identity.test_admitted_calls import serving
from tests.unit.common.identity.test_gate import KEYS, Known
from tests.unit.common.test_native_server import SECONDS
from tests.unit.common.test_native_server import serving as serving_native


class Admissions:
    """Notes that a gate has admitted a call, at its headers."""

    def __init__(self, gate, monkeypatch):
        self._admit = gate.admit
        self.has_one = asyncio.Event()
        monkeypatch.setattr(gate, "admit", self._note)

    def _note(self, *call):
        access = self._admit(*call)
        self.has_one.set()
        return access


@pytest.mark.parametrize(("is_deleted", "error"), [(False, NotAuthorizedError), (True, UnauthenticatedError)])
async def test_a_call_whose_message_follows_the_loss_of_its_right_is_refused(monkeypatch, is_deleted, error):
    """Its caller holds it open, and sees by the refusals of others when to send the message."""
    async with serving() as served, grpc.aio.insecure_channel(served.address) as channel:
        admissions = Admissions(served.known.gate, monkeypatch)
        method = channel.stream_stream(
            "/headrace.v1.ClusterService/DumpMetadata",
            request_serializer=cluster_pb2.DumpMetadataRequest.SerializeToString,
            response_deserializer=cluster_pb2.DumpMetadataResponse.FromString,
        )
        call = method(**served.options())
        await admissions.has_one.wait()
        if is_deleted:
            served.known.user()  # a new key in the place of the one of the call
        else:
            served.known.keys.write({served.grant: None})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.write(cluster_pb2.DumpMetadataRequest())
            await call.read()
        assert isinstance(from_rpc_error(refused.value), error)


async def test_a_stream_whose_caller_loses_its_right_while_a_quota_holds_it_is_refused(monkeypatch):
    """It is held for seconds, and has nothing of what it asks for by then."""
    async with serving() as served:

        async def hold(*_):
            served.known.keys.write({served.grant: None})
            return 5_000

        monkeypatch.setattr(served.known.gate.quotas, "hold", hold)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.dump_metadata(cluster_pb2.DumpMetadataRequest(), **served.options()).read()
        assert isinstance(from_rpc_error(refused.value), NotAuthorizedError)


async def test_a_native_request_that_ends_after_its_callers_key_is_refused():
    """Its header was admitted before; half a minute may be between the two."""
    known = Known(auth_pb2.POSTURE_REQUIRED)
    async with serving_native(gate=known.gate) as bench:
        client = await bench.open()
        client.sending.write(PREFACE)
        client.send(Kind.HELLO, native_pb2.Hello(client_id="me", session=known.user()).SerializeToString())
        assert (await client.receive())[0].kind == Kind.WELCOME
        message = broker_pb2.FetchRequest(client_id="me").SerializeToString()
        head = frame_head(Kind.REQUEST, message, method=MethodCode.FETCH, correlation=1, timeout_ms=20_000)
        client.sending.write(head[:-1])
        (connection,) = bench.server._connections
        async with asyncio.timeout(SECONDS):
            await bench.until(lambda: connection._admitted is not None)
        known.keys.write({KEYS.user("ada"): None})
        client.sending.write(head[-1:])
        assert isinstance(await client.error(), UnauthenticatedError)
        assert not bench.service.requests


def test_what_arrives_is_counted_again_only_after_a_change():
    """`observe` counts each call that it serves without a right once."""
    known, row = Known(auth_pb2.POSTURE_OBSERVE), METHODS["/headrace.v1.BrokerService/Fetch"]
    access = known.gate.admit(ANONYMOUS, "Fetch", row, "10.0.0.1")
    known.gate.admit_arrived(access, row)
    labels = {"user": "anonymous", "method": "Fetch", "right": "identity"}
    assert known.counted("observed_refusals", **labels) == 1
    known.user()
    for _ in range(2):
        known.gate.admit_arrived(access, row)
    assert known.counted("observed_refusals", **labels) == 2
