"""Which servers are asked for metadata and for how long, and what an error of a call means. No I/O."""

import grpc
import pytest
from headrace.client import cluster_calls
from headrace.client.cluster_calls import METADATA_PROBE_S, ClusterCalls, error_of_call
from headrace.client.config import ClientConfig
from headrace.client.errors import NoBrokersAvailableError
from headrace.client.steps import drive
from headrace.v1 import cluster_pb2, errors_pb2
from headrace.wire.errors import STATUS_DETAILS_KEY, ConflictError, Outcome, to_detail


class Failure(grpc.RpcError):
    def __init__(self, status, details=""):
        self._status, self._details = status, details

    def code(self):
        return self._status

    def details(self):
        return self._details


REFUSED = Failure(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
SILENT = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
STOPPING = Failure(grpc.StatusCode.CANCELLED, "CANCELLED")


class Servers:
    """Answers by address; a silent one takes all the time that it is given."""

    def __init__(self, monkeypatch, **answers):
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        self.asked = []
        self.now = 0.0
        monkeypatch.setattr(cluster_calls.time, "monotonic", lambda: self.now)
        self.calls = ClusterCalls(ClientConfig(bootstrap_servers=tuple(self.answers)))

    def perform(self, step):
        self.asked.append((step.address, round(step.timeout, 3)))
        answer = self.answers[step.address]
        if answer is SILENT:
            self.now += step.timeout
        if isinstance(answer, Exception):
            raise answer
        return answer

    def metadata(self, timeout=30.0):
        return drive(self.calls.metadata(cluster_pb2.GetMetadataRequest(), timeout), self.perform)


@pytest.mark.parametrize("failure", [REFUSED, SILENT, STOPPING])
def test_the_next_server_is_asked_soon(monkeypatch, failure):
    """A server that is dead, hangs or stops costs a second at most; the one that answered is asked first next time."""
    good = cluster_pb2.GetMetadataResponse(cluster_id="c")
    servers = Servers(monkeypatch, a=failure, b=good)
    assert servers.metadata().cluster_id == "c"
    assert servers.asked == [("a:1", METADATA_PROBE_S), ("b:1", METADATA_PROBE_S)]
    servers.asked.clear()
    servers.metadata()
    assert servers.asked == [("b:1", METADATA_PROBE_S)]


def test_servers_that_are_all_slow_are_asked_once_more_with_the_time_that_is_left(monkeypatch):
    servers = Servers(monkeypatch, a=SILENT, b=SILENT)
    with pytest.raises(NoBrokersAvailableError) as caught:
        servers.metadata(timeout=12.0)
    assert set(caught.value.causes) == {"a:1", "b:1"}
    assert servers.asked == [("a:1", 1.0), ("b:1", 1.0), ("a:1", 5.0), ("b:1", 5.0)]
    assert servers.now == 12.0


def test_a_short_time_is_not_overrun(monkeypatch):
    servers = Servers(monkeypatch, a=SILENT, b=SILENT)
    with pytest.raises(NoBrokersAvailableError) as caught:
        servers.metadata(timeout=0.7)
    assert servers.asked == [("a:1", 0.7)]
    assert caught.value.causes["b:1"] == "not tried: the time was up"


def test_a_conflict_is_tried_elsewhere_and_told_as_what_it_is(monkeypatch):
    """The next server may succeed; where the last one says so, too, servers were there and nobody was missing."""
    status = errors_pb2.Status()
    status.details.add().Pack(to_detail(ConflictError("somebody else was first")))
    conflict = Failure(grpc.StatusCode.ABORTED)
    conflict.trailing_metadata = lambda: ((STATUS_DETAILS_KEY, status.SerializeToString()),)
    good = cluster_pb2.GetMetadataResponse(cluster_id="c")
    assert Servers(monkeypatch, a=conflict, b=good).metadata().cluster_id == "c"
    with pytest.raises(ConflictError, match="somebody else was first"):
        Servers(monkeypatch, a=REFUSED, b=conflict).metadata(timeout=0.5)


def test_what_never_left_was_not_applied_and_what_a_server_cancelled_may_go_again():
    assert error_of_call(REFUSED).outcome == Outcome.NOT_APPLIED
    assert error_of_call(REFUSED).retriable
    for failure in (STOPPING, SILENT, Failure(grpc.StatusCode.UNAVAILABLE, "connection reset")):
        assert error_of_call(failure).outcome == Outcome.UNKNOWN
        assert error_of_call(failure).retriable
    assert not error_of_call(Failure(grpc.StatusCode.PERMISSION_DENIED, "no")).retriable
