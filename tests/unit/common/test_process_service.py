"""What a process tells of itself: a measurement of the disk is shared, a level of the log is not changed too often."""

import asyncio

import grpc
import pytest
from headrace.v1 import process_pb2, process_pb2_grpc
from headrace.wire.errors import ThrottledError, from_rpc_error
from headrace_server.health import Health, HealthCause
from headrace_server.methods import METHODS
from headrace_server.places import BURST_SECONDS
from headrace_server.process_service import MEASURE_MS, ProcessParts, ProcessServicer, add_process_service
from headrace_server.rpc import RpcServer
from headrace_server.telemetry import log_level
from prometheus_client import CollectorRegistry, Counter

from tests.fakes.manual_clock import ManualClock
from tests.fakes.open_gate import open_gate


class Disk:
    def __init__(self):
        self.measured = 0

    async def describe(self, measure):
        self.measured += measure
        await asyncio.sleep(0)
        return process_pb2.DiskDescription(data_dir="d", fsync_us=100 * self.measured if measure else 0)


async def no_members():
    return []


def parts(disk, clock):
    counter = Counter("errors", "-", ["method", "code"], registry=CollectorRegistry())
    return ProcessParts("broker-1", "0", clock, Health(), counter, no_members, disk.describe)


class Context:
    def time_remaining(self):
        return 10.0

    def peer(self):
        return "ipv4:127.0.0.1:5000"


@pytest.mark.parametrize("cause", HealthCause)
async def test_a_cause_fails_its_probes_with_reason_and_next_step(cause):
    """Each cause is told with its probes alone, once however often it is held, until it is released."""
    process = parts(Disk(), ManualClock())
    servicer = ProcessServicer(process)

    async def found():
        answer = await servicer.DescribeProcess(process_pb2.DescribeProcessRequest(), Context())
        return {probe.name: [(each.reason, each.action) for each in probe.causes] for probe in answer.health}

    process.health.release(HealthCause.STARTING)
    healthy = await found()
    assert healthy == {"startup": [], "liveness": [], "readiness": []}
    process.health.hold(cause)
    process.health.hold(cause)
    assert await found() == healthy | {name: [(cause.reason, cause.action)] for name in cause.probes}
    assert cause.action.endswith(".")
    process.health.release(*HealthCause)
    assert await found() == healthy


async def test_a_measurement_serves_all_who_ask():
    """F19: all requests together cause one fsync of the data disk in five seconds."""
    disk, clock = Disk(), ManualClock()
    servicer = ProcessServicer(parts(disk, clock))

    async def ask(measure=True):
        request = process_pb2.DescribeProcessRequest(measure_disk=measure)
        return (await servicer.DescribeProcess(request, Context())).disk.fsync_us

    assert await asyncio.gather(*(ask() for _ in range(20))) == [100] * 20
    assert await ask(False) == 0
    clock.advance(MEASURE_MS)
    assert await ask() == 200
    assert disk.measured == 2


async def test_the_level_is_changed_so_often_and_no_more():
    """F18: one caller's changes are limited; each that is made is a line of the log."""
    server = RpcServer(gate=open_gate())
    add_process_service(server, parts(Disk(), ManualClock()))
    address = await server.start("127.0.0.1:0")
    request = process_pb2.SetLogLevelRequest(level=log_level())
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = process_pb2_grpc.ProcessServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                for _ in range(1000):
                    await stub.SetLogLevel(request, timeout=30)
            error = from_rpc_error(caught.value)
            assert isinstance(error, ThrottledError)
            assert error.retry_after_ms
            await stub.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=30)
    finally:
        await server.stop(0)
    assert METHODS["/headrace.v1.ProcessService/SetLogLevel"].calls_per_minute / 60 * BURST_SECONDS < 100
