"""Which servers are asked for metadata and for how long, and what an error of a call means. No I/O."""

import grpc
import pytest
from headrace.client.admin.rpc import by_name
from headrace.client.base.config import ClientConfig
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.client.base.operations import execute
from headrace.client.net import bootstrap_client
from headrace.client.net.bootstrap_client import METADATA_PROBE_S, BootstrapClient, error_of_call
from headrace.v1 import cluster_pb2, errors_pb2
from headrace.wire.errors import (
    STATUS_DETAILS_KEY,
    ConflictError,
    HeadraceError,
    MetastoreUnavailableError,
    Outcome,
    UnknownTopicError,
    from_detail,
    to_detail,
)

from tests.fakes.failed_call import FailedCallError

REFUSED = FailedCallError(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")
SILENT = FailedCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
STOPPING = FailedCallError(grpc.StatusCode.CANCELLED, "CANCELLED")


def refused_with(error):
    """Return a call that a server answers with an error."""
    status = errors_pb2.Status()
    status.details.add().Pack(to_detail(error))
    call = FailedCallError(grpc.StatusCode.ABORTED)
    call.trailing_metadata = lambda: ((STATUS_DETAILS_KEY, status.SerializeToString()),)
    return call


class Servers:
    """Answers by address; a silent one takes all the time that it is given."""

    def __init__(self, monkeypatch, **answers):
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        self.asked = []
        self.tries = []
        self.now = 0.0
        monkeypatch.setattr(bootstrap_client.time, "monotonic", lambda: self.now)
        self.calls = BootstrapClient(ClientConfig(bootstrap_servers=tuple(self.answers)))

    def run_step(self, step):
        self.asked.append((step.address, round(step.timeout, 3)))
        self.tries.append(step.call_try)
        answer = self.answers[step.address]
        if answer is SILENT:
            self.now += step.timeout
        if isinstance(answer, Exception):
            raise answer
        return answer

    def metadata(self, timeout=30.0):
        return execute(self.calls.metadata(cluster_pb2.GetMetadataRequest(), timeout), self.run_step)


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
    """The next server may succeed; if the last one reports a conflict too, the error is the conflict."""
    conflict = refused_with(ConflictError("another writer was first"))
    good = cluster_pb2.GetMetadataResponse(cluster_id="c")
    assert Servers(monkeypatch, a=conflict, b=good).metadata().cluster_id == "c"
    with pytest.raises(ConflictError, match="another writer was first"):
        Servers(monkeypatch, a=REFUSED, b=conflict).metadata(timeout=0.5)


@pytest.mark.parametrize(
    ("first", "last", "outcome"),
    [
        (SILENT, refused_with(ConflictError("another writer was first")), Outcome.UNKNOWN),
        (REFUSED, refused_with(ConflictError("another writer was first")), Outcome.NOT_APPLIED),
        (SILENT, REFUSED, Outcome.UNKNOWN),
        (REFUSED, REFUSED, Outcome.NOT_APPLIED),
    ],
)
def test_a_call_is_in_doubt_if_any_try_of_it_may_have_been_applied(monkeypatch, first, last, outcome):
    metadata = cluster_pb2.GetMetadataResponse(coordinators=["a:1", "b:1"])
    metadata.brokers.add(broker_id=1, address="m:1")
    servers = Servers(monkeypatch, m=metadata, a=first, b=last)
    servers.calls = BootstrapClient(ClientConfig(bootstrap_servers=("m:1",)))
    with pytest.raises(HeadraceError) as caught:
        execute(servers.calls.coordinator("DrainBroker", cluster_pb2.DrainBrokerRequest(), 3.0), servers.run_step)
    assert caught.value.outcome == outcome
    with pytest.raises(HeadraceError) as caught:
        execute(
            servers.calls.coordinator("DescribeCluster", cluster_pb2.DescribeClusterRequest(), 3.0), servers.run_step
        )
    assert caught.value.outcome == Outcome.NOT_APPLIED


@pytest.mark.parametrize(("first", "outcome"), [(SILENT, Outcome.UNKNOWN), (REFUSED, Outcome.NOT_APPLIED)])
def test_errors_in_a_response_have_the_outcome_of_all_tries(monkeypatch, first, outcome):
    """A later server refuses a part of what the first one may have done (seed 53 of the simulator, H52)."""
    refused = cluster_pb2.ReassignPartitionsResponse()
    refused.partitions.add(topic_id=b"t", error=to_detail(MetastoreUnavailableError("no", outcome=Outcome.NOT_APPLIED)))
    refused.partitions.add(topic_id=b"t", replicas=(1, 2))
    metadata = cluster_pb2.GetMetadataResponse(coordinators=["a:1", "b:1"])
    servers = Servers(monkeypatch, m=metadata, a=first, b=refused)
    servers.calls = BootstrapClient(ClientConfig(bootstrap_servers=("m:1",)))
    calling = servers.calls.coordinator("ReassignPartitions", cluster_pb2.ReassignPartitionsRequest(), 12.0)
    answer = execute(calling, servers.run_step)
    assert from_detail(answer.partitions[0].error).outcome == outcome
    assert not answer.partitions[1].HasField("error")


@pytest.mark.parametrize(("first", "number"), [(SILENT, 1), (REFUSED, 0)])
def test_a_repeated_call_names_itself_and_the_tries_that_may_have_been_applied(monkeypatch, first, number):
    """A coordinator that was never reached needs no fence; nor does a call that changes nothing."""
    metadata = cluster_pb2.GetMetadataResponse(coordinators=["a:1", "b:1"])
    servers = Servers(monkeypatch, m=metadata, a=first, b=cluster_pb2.AlterConfigsResponse())
    servers.calls = BootstrapClient(ClientConfig(bootstrap_servers=("m:1",)))
    for method in ("AlterConfigs", "AlterConfigs", "DescribeConfigs"):
        servers.tries.clear()
        execute(servers.calls.coordinator(method, cluster_pb2.AlterConfigsRequest(), 12.0), servers.run_step)
        if method == "DescribeConfigs":
            assert servers.tries[-2:] == [None, None]
            continue
        before, after = servers.tries[-2:]
        assert (before.number, after.number) == (0, number)
        assert before.call_id == after.call_id
    servers.tries.clear()
    request = cluster_pb2.CreateTopicsRequest()
    servers.answers["a:1"] = cluster_pb2.CreateTopicsResponse()
    execute(servers.calls.coordinator("CreateTopics", request, 12.0, repeatable=False), servers.run_step)
    assert servers.tries == [None]


def test_what_never_left_was_not_applied_and_what_a_server_cancelled_may_go_again():
    assert error_of_call(REFUSED).outcome == Outcome.NOT_APPLIED
    assert error_of_call(REFUSED).retriable
    for failure in (STOPPING, SILENT, FailedCallError(grpc.StatusCode.UNAVAILABLE, "connection reset")):
        assert error_of_call(failure).outcome == Outcome.UNKNOWN
        assert error_of_call(failure).retriable
    assert not error_of_call(FailedCallError(grpc.StatusCode.PERMISSION_DENIED, "no")).retriable


def test_metadata_from_a_foreign_grpc_server_names_it_and_the_ports(monkeypatch):
    """A client that is pointed at etcd learns that, and what to name, and not that the cluster may be down."""
    servers = Servers(
        monkeypatch, etcd=FailedCallError(grpc.StatusCode.UNIMPLEMENTED, "unknown service headrace.v1.Cluster")
    )
    with pytest.raises(NoBrokersAvailableError, match="neither a broker nor a coordinator") as caught:
        servers.metadata()
    assert "7170" in caught.value.action
    assert not caught.value.retriable


def metadata_of(revision, topics, *, cluster="c", generation=1, coordinators=()):
    """An answer about topic `t`: `topics` maps names to ids; empty: there is no `t`."""
    response = cluster_pb2.GetMetadataResponse(
        cluster_id=cluster, generation=generation, revision=revision, coordinators=coordinators
    )
    for name, topic_id in topics.items():
        response.topics.add(name=name, topic_id=topic_id)
    if not topics:
        response.topics.add(name="t", error=to_detail(UnknownTopicError("there is no topic named 't'")))
    return response


OLD, NEW = {"t": b"o" * 16}, {"t": b"n" * 16}


def ask(servers, *names):
    request = cluster_pb2.GetMetadataRequest(topics=[by_name(name) for name in names])
    return execute(servers.calls.metadata(request, 30.0), servers.run_step)


@pytest.mark.parametrize("stale", [metadata_of(90, {}), metadata_of(90, OLD)])
def test_another_server_is_asked_where_an_answer_is_older_than_what_is_known(monkeypatch, stale):
    """A server that etcd does not reach answers with what it last read; one that knows more is asked in its place."""
    servers = Servers(monkeypatch, a=metadata_of(95, NEW), b=metadata_of(96, NEW))
    assert ask(servers, "t").revision == 95
    servers.answers["a:1"] = stale
    assert ask(servers, "t").revision == 96
    servers.asked.clear()
    assert ask(servers, "t").revision == 96
    assert [address for address, _ in servers.asked] == ["b:1"]  # From now on first.


def test_where_all_answers_are_older_what_they_refute_is_an_error_that_a_retry_may_mend(monkeypatch):
    servers = Servers(monkeypatch, a=metadata_of(95, NEW), b=metadata_of(90, {}))
    ask(servers, "t")
    servers.answers["a:1"] = metadata_of(91, OLD)
    (topic,) = ask(servers, "t").topics
    error = from_detail(topic.error)
    assert isinstance(error, MetastoreUnavailableError)
    assert error.retriable
    assert "revision 91" in str(error)
    assert "revision 95" in str(error)


def with_partitions(count, answer):
    """The answer, with this number of partitions of each topic."""
    for topic in answer.topics:
        for number in range(count):
            topic.partitions.add(partition=number)
    return answer


def test_an_older_answer_omits_no_partitions(monkeypatch):
    """A restored cluster may have fewer; a list of all topics neither."""
    full = with_partitions(3, metadata_of(95, NEW))
    servers = Servers(monkeypatch, a=full, b=with_partitions(2, metadata_of(90, NEW)))
    ask(servers, "t")
    servers.answers["a:1"] = with_partitions(3, metadata_of(80, NEW))
    assert ask(servers, "t").revision == 80
    servers.answers["a:1"] = REFUSED
    for names in (("t",), ()):
        (topic,) = ask(servers, *names).topics
        error = from_detail(topic.error)
        assert isinstance(error, MetastoreUnavailableError)
        assert "and 3 partitions" in str(error)
    servers.answers["b:1"] = with_partitions(2, metadata_of(40, NEW, generation=2))
    assert len(ask(servers, "t").topics[0].partitions) == 2


def test_an_older_list_of_all_topics_hides_none(monkeypatch):
    servers = Servers(monkeypatch, a=metadata_of(95, {**NEW, "u": b"u" * 16}), b=metadata_of(90, {"u": b"u" * 16}))
    ask(servers)
    servers.answers["a:1"] = REFUSED
    listed = {topic.name: topic for topic in ask(servers).topics}
    assert listed["t"].HasField("error")
    assert not listed["u"].HasField("error")
    servers.answers["b:1"] = metadata_of(96, {"u": b"u" * 16})
    assert [topic.name for topic in ask(servers).topics] == ["u"]


def test_an_older_answer_that_refutes_nothing_is_taken_at_once(monkeypatch):
    """Revisions of servers that are all up to date differ: that alone costs no further question."""
    servers = Servers(monkeypatch, a=metadata_of(95, NEW), b=metadata_of(90, NEW))
    ask(servers, "t")
    servers.answers["a:1"] = REFUSED
    servers.asked.clear()
    assert ask(servers, "t").revision == 90
    assert [address for address, _ in servers.asked] == ["a:1", "b:1"]


def test_a_restored_cluster_is_believed_and_another_cluster_only_where_no_server_is_left_of_the_known_one(monkeypatch):
    servers = Servers(monkeypatch, a=metadata_of(5_000, OLD), b=metadata_of(5_000, OLD))
    ask(servers, "t")
    servers.answers.update({"a:1": metadata_of(40, NEW, generation=2), "b:1": metadata_of(6_000, OLD)})
    assert ask(servers, "t").generation == 2
    servers.answers["a:1"] = metadata_of(9_000, NEW, cluster="d")
    servers.answers["b:1"] = metadata_of(41, NEW, generation=2)
    assert ask(servers, "t").cluster_id == "c"
    servers.answers["b:1"] = REFUSED
    assert ask(servers, "t").cluster_id == "d"


def test_an_older_answer_names_no_coordinators(monkeypatch):
    servers = Servers(
        monkeypatch,
        a=metadata_of(95, NEW, coordinators=["new:1"]),
        b=metadata_of(90, NEW, coordinators=["old:1"]),
    )
    ask(servers, "t")
    servers.answers["a:1"] = REFUSED
    ask(servers, "t")
    assert servers.calls.coordinators == ("new:1",)
