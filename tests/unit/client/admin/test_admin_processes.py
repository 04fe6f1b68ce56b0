"""Asking processes how they are, and setting their logs' levels: what one answers is never told of another. No I/O."""

import grpc
import pytest
from headrace.client.admin.processes import LogLevelResult, ProcessSteps
from headrace.client.base.config import ClientConfig
from headrace.client.base.operations import execute
from headrace.client.net.bootstrap_client import BootstrapClient
from headrace.v1 import auth_pb2, cluster_pb2, process_pb2

from tests.fakes.failed_call import FailedCallError

SHARED, OWN = "headrace:7170", "broker-1:7180"


class Servers:
    """Two coordinators behind one address, where `behind` answers, and a broker with its own."""

    def __init__(self, behind):
        self.names = {SHARED: behind, OWN: "broker-1"}
        self.changed = []
        self.postures = {SHARED: auth_pb2.POSTURE_REQUIRED, OWN: auth_pb2.POSTURE_OPEN}
        self.silent = set()
        config = ClientConfig(bootstrap_servers=(SHARED,))
        self.operations = ProcessSteps(config, BootstrapClient(config))

    def run_step(self, step):
        if step.method == "GetMetadata":
            return cluster_pb2.GetMetadataResponse(cluster_id="c", coordinators=[SHARED])
        if step.method == "DescribeCluster":
            cluster = cluster_pb2.DescribeClusterResponse()
            for name in ("a", "b"):
                cluster.coordinators.add(coordinator_id=name, address=SHARED)
            cluster.brokers.add(broker_id=1, address=OWN)
            return cluster
        name = self.names[step.address]
        if step.method == "DescribeProcess":
            return process_pb2.DescribeProcessResponse(name=name, version="0.1.0", settings={"lease_ttl_ms": "3000"})
        if step.method == "WhoAmI":
            if step.address in self.silent:
                raise FailedCallError(grpc.StatusCode.UNAVAILABLE)
            return auth_pb2.WhoAmIResponse(posture=self.postures[step.address])
        assert step.method == "SetLogLevel"
        if step.request.server != name:
            return process_pb2.SetLogLevelResponse(name=name)
        self.changed.append(name)
        return process_pb2.SetLogLevelResponse(name=name, previous_level="info")


@pytest.mark.parametrize(("behind", "other"), [("coordinator-a", "coordinator-b"), ("coordinator-b", "coordinator-a")])
def test_who_shares_an_address_is_not_taken_for_who_answers(behind, other):
    """One of the two is described, and of the other it is said who answered in its place."""
    servers = Servers(behind)
    found = execute(servers.operations.describe(measure_disk=False, timeout=1.0), servers.run_step)
    assert {each.name: each.answered_by for each in found} == {"broker-1": "", behind: "", other: behind}
    (missed,) = [each for each in found if each.answered_by]
    assert missed.error == f"{behind} responds at {SHARED}"
    assert (missed.version, missed.settings) == ("", {})
    assert all(each.settings == {"lease_ttl_ms": "3000"} for each in found if not each.answered_by)


def test_each_process_says_its_own_posture():
    """The settings of one may demand more than those of another; one that does not say it is described without."""
    servers = Servers("coordinator-a")
    found = execute(servers.operations.describe(measure_disk=False, timeout=1.0), servers.run_step)
    postures = {each.name: each.posture for each in found}
    assert postures == {"coordinator-a": "required", "coordinator-b": "", "broker-1": "open"}
    servers.silent.add(OWN)
    found = execute(servers.operations.describe(measure_disk=False, timeout=1.0), servers.run_step)
    assert [(each.posture, each.version) for each in found if each.name == "broker-1"] == [("", "0.1.0")]


def test_the_level_of_one_is_not_set_in_place_of_anothers():
    """Nothing is changed, and a sentence says who answered."""
    servers = Servers("coordinator-a")
    results = execute(servers.operations.set_log_level("debug", ("coordinator-b",), 0, 1.0), servers.run_step)
    assert servers.changed == []
    error = f"coordinator-a responds at its address {SHARED}; nothing was changed"
    assert results == [LogLevelResult("coordinator-b", "", error)]
    results = execute(servers.operations.set_log_level("debug", None, 0, 1.0), servers.run_step)
    assert servers.changed == ["coordinator-a", "broker-1"]
    assert [each.name for each in results if not each.error] == servers.changed
