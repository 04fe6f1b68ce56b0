"""One trace from the application through the broker to the handler, on a real cluster, by OTLP."""

import urllib.request
from collections.abc import Callable, Iterator

import headrace
import pytest
from headrace.wire.errors import UnknownTopicError
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.integration.traced import PRODUCE, SECRET, STAGES, TOPIC, application, check_trace, send_and_handle
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(receiver: OtlpReceiver) -> Iterator[LocalCluster]:
    settings = {"otlp_endpoint": receiver.endpoint, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(
        LocalClusterSpec(brokers=3, coordinators=1, broker_settings=settings, coordinator_settings=settings)
    ) as found:
        with headrace.Admin(bootstrap_servers=found.bootstrap_servers) as admin:
            admin.create_topic(TOPIC)
        yield found


@pytest.fixture
def provider(receiver: OtlpReceiver) -> Iterator[TracerProvider]:
    """The application's own provider, which exports to the same collector."""
    with application(receiver.endpoint) as found:
        yield found


@pytest.mark.parametrize(
    ("transport", "system"), [pytest.param("native", "headrace", marks=pytest.mark.native), ("grpc", "grpc")]
)
def test_one_trace_leads_from_the_send_through_the_broker_to_the_handler(
    cluster: LocalCluster, receiver: OtlpReceiver, provider: TracerProvider, transport: str, system: str
) -> None:
    """Over both protocols; the planted key, value and header are in nothing that the collector got."""
    trace_id = send_and_handle(cluster, provider, transport)

    def of_trace(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.trace_id == trace_id]

    wanted = {"checkout", f"send {TOPIC}", PRODUCE, f"process {TOPIC}", "send mail", *STAGES}
    spans = of_trace(receiver.wait_for(lambda spans: wanted <= {span.name for span in of_trace(spans)}))
    check_trace(spans, system)
    assert SECRET not in b"".join(receiver.bodies)


def test_an_administrators_call_is_in_the_trace_of_its_caller(
    cluster: LocalCluster, receiver: OtlpReceiver, provider: TracerProvider
) -> None:
    """At the coordinator; an error has its code, and calls outside of the span have none."""
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with provider.get_tracer("shop").start_as_current_span("look"), pytest.raises(UnknownTopicError) as raised:
            admin.describe_topic("missing")
        admin.create_topic("untraced")
    provider.force_flush()

    def of_coordinator(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        looks = {span.trace_id for span in spans if span.name == "look"}
        return [span for span in spans if span.process.startswith("coordinator-") and span.trace_id in looks]

    spans = receiver.wait_for(of_coordinator)
    (look,) = [span for span in spans if span.name == "look"]
    calls = of_coordinator(spans)
    assert {span.parent_id for span in calls} == {look.span_id}
    assert raised.value.request_id.startswith(f"00-{look.trace_id}-{look.span_id}-01-")
    assert not any(span.name.endswith("CreateTopic") for span in spans)


def test_histograms_have_the_trace_as_exemplar(
    cluster: LocalCluster, receiver: OtlpReceiver, provider: TracerProvider
) -> None:
    """In the OpenMetrics format, which Prometheus asks for; the plain text has none."""
    trace_id = send_and_handle(cluster, provider, "auto")
    exemplars: dict[str, set[str]] = {}
    for broker in cluster.brokers:
        request = urllib.request.Request(f"http://{broker.metrics_address}/metrics", headers={"Accept": OPEN_METRICS})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            page = answer.read().decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.exemplar is not None:
                    exemplars.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
        assert "trace_id" not in broker.page("/metrics")
    assert trace_id in exemplars["headrace_broker_produce_seconds"]
    assert trace_id in exemplars["headrace_broker_produce_stage_seconds"]


def test_brokers_work_while_the_collector_is_silent(own_cluster: Callable[..., LocalCluster]) -> None:
    """Every call is traced, and the collector takes spans and never answers: all records are acknowledged."""
    with OtlpReceiver(is_silent=True) as silent:
        own = own_cluster(brokers=1, coordinators=1, broker_settings={"otlp_endpoint": silent.endpoint})
        with headrace.Admin(bootstrap_servers=own.bootstrap_servers) as admin:
            admin.create_topic(TOPIC)
        sampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
            with headrace.Producer(bootstrap_servers=own.bootstrap_servers, delivery_timeout_ms=20_000) as producer:
                with trace.use_span(trace.NonRecordingSpan(sampled)):
                    for _ in range(3_000):
                        producer.send(TOPIC, b"one")
                        producer.send_many(TOPIC, [b"two"])
                producer.flush(60)
        silent.wait_for(len)
        with headrace.Reader(TOPIC, bootstrap_servers=own.bootstrap_servers) as reader:
            assert len(list(reader)) == 6_000
        own.brokers[0].stop()
