"""Spans of producers, consumers and handlers on a directory, by OpenTelemetry's own SDK."""

import asyncio
import threading
from itertools import islice
from types import SimpleNamespace

import pytest
from headrace import aio
from headrace.client.producer.accumulator import BATCH_OVERHEAD, record_cost
from headrace.client.tracing.receiving import MAX_LINKS, contexts_of
from headrace.wire.errors import BatchTooLargeError
from headrace.wire.trace_context import parse_traceparent
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, StaticSampler
from opentelemetry.trace import SpanKind, StatusCode

TOPIC = "orders"
RECORD_ONLY = StaticSampler(Decision.RECORD_ONLY)
SECRET = b"planted-secret-4711"


@pytest.fixture
def log(headrace_directory):
    headrace_directory.admin.create_topic(TOPIC)
    return headrace_directory


def stored_headers(log):
    """Return the headers of the stored records as they are in the log, without what readers make of them."""
    with log.reader(TOPIC) as reader:
        column = reader.to_arrow()["headers"].to_pylist()
    return [[(pair["key"], pair["value"]) for pair in pairs] for pairs in column]


def traceparent(span):
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-01".encode()


def run_handler(log, count, handler, **options):
    """Run `handler` until it has been called `count` times."""
    calls = []
    with log.consumer(TOPIC, group_id="billing", auto_offset_reset="earliest") as consumer:

        def counted(record):
            try:
                return handler(record)
            finally:
                calls.append(record)
                if len(calls) >= count:
                    consumer.stop()

        summary = consumer.run(counted, handle_signals=False, **options)
    return calls, summary


def test_without_a_provider_nothing_is_injected(log, application):
    """`opentelemetry` is imported here, but the application has set no provider: records are as without it."""
    with log.producer() as producer:
        producer.send(TOPIC, b"one", headers=[("own", b"1")])
        producer.send_many(TOPIC, [b"two", b"three"])
    assert stored_headers(log) == [[("own", b"1")], [], []]
    calls, _ = run_handler(log, 3, lambda record: None)
    assert [record.headers for record in calls] == [(("own", b"1"),), (), ()]
    assert application.names() == []


def test_tracing_off_is_as_without_a_provider(log, application):
    application.set_provider()
    with application.tracer.start_as_current_span("request"), log.producer(tracing="off") as producer:
        producer.send(TOPIC, b"one")
    with log.consumer(TOPIC, auto_offset_reset="earliest", tracing="off") as consumer:
        assert len(consumer.poll(timeout=10)) == 1
    assert stored_headers(log) == [[]]
    assert application.names() == []


def test_a_send_in_a_trace_has_a_span_and_a_context(log, application):
    """The span is a child of the application's, has what the conventions ask for, and ends with the acknowledgement."""
    application.set_provider()
    with log.producer(client_id="shop") as producer:
        producer.send(TOPIC, b"before").result(10)
        with application.tracer.start_as_current_span("request") as request:
            result = producer.send(TOPIC, b"one", headers=[("own", b"1")]).result(10)
            (span,) = application.spans("send orders")[1:]
    assert span.parent == request.get_span_context()
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "messaging.system": "headrace",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "shop",
        "messaging.headrace.offset": result.offset,
        "server.address": "directory",
        "server.port": 1,
    }
    assert stored_headers(log)[1] == [("own", b"1"), ("traceparent", traceparent(span))]


def test_fast_sends_notice_the_trace_of_their_caller(log, application):
    """Between sends of the fast paths, with and without keys, those in a trace have spans and the others have none."""
    application.set_provider(root=ALWAYS_OFF)
    sampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(1))
    inside = trace.set_span_in_context(trace.NonRecordingSpan(sampled))
    for key in (None, b"key"):
        with log.producer(linger_ms=60_000, return_futures=key is None) as producer:
            for number in range(30):
                token = trace.context_api.attach(inside) if number % 10 == 5 else None
                producer.send(TOPIC, b"%d" % number, key)
                if token is not None:
                    trace.context_api.detach(token)
    headers = stored_headers(log)
    assert len(headers) == 60
    assert [bool(each) for each in headers] == [number % 10 == 5 for number in range(60)]
    assert [span.parent.span_id for span in application.spans("send orders")] == [8] * 6


class OpenSpans(SpanProcessor):
    """Names of the spans that were started and not ended, and of those that were ended."""

    def __init__(self):
        self.open, self.ended = [], []

    def on_start(self, span, parent_context=None):
        self.open.append(span.name)

    def on_end(self, span):
        self.open.remove(span.name)
        self.ended.append((span.name, span.attributes.get("messaging.headrace.offset")))


def test_spans_that_are_recorded_and_not_sampled_are_ended(log, application):
    """Of a batch, of a record in a sampled trace, and of `send_many`: with the offset, and no header says anything."""
    application.set_provider()
    processor = OpenSpans()
    trace.get_tracer_provider().add_span_processor(processor)
    trace.get_tracer_provider().sampler = RECORD_ONLY
    sampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(1))
    with log.producer() as producer:
        producer.send(TOPIC, b"one").result(10)
        token = trace.context_api.attach(trace.set_span_in_context(trace.NonRecordingSpan(sampled)))
        producer.send(TOPIC, b"two").result(10)
        producer.send_many(TOPIC, [b"three"])
        trace.context_api.detach(token)
    assert processor.ended == [("send orders", 0), ("send orders", 1), ("send orders", 2)]
    assert processor.open == []
    assert stored_headers(log) == [[], [], []]
    assert application.names() == []


class FailingProcessor(SpanProcessor):
    """Processor of an application whose methods of these names fail."""

    def __init__(self, *failing):
        self._failing = failing

    def on_start(self, span, parent_context=None):
        if "on_start" in self._failing:
            raise RuntimeError("planted")

    def on_end(self, span):
        if "on_end" in self._failing:
            raise RuntimeError("planted")


@pytest.mark.parametrize("failing", ["on_start", "on_end"])
def test_a_span_processor_that_fails_affects_no_record(log, application, failing, caplog):
    """Of a batch, of a record, of `send_many`, of a refused record, of a poll, and of a handler. It is logged once."""
    application.set_provider()
    trace.get_tracer_provider().add_span_processor(FailingProcessor(failing))
    sampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(1))
    token = trace.context_api.attach(trace.set_span_in_context(trace.NonRecordingSpan(sampled)))
    with log.producer() as producer:
        producer.send(TOPIC, b"one").result(10)
        producer.send_many(TOPIC, [b"two"])
        with pytest.raises(BatchTooLargeError):
            producer.send(TOPIC, bytes(20 << 20))
        trace.context_api.detach(token)
        producer.flush()
        producer.send(TOPIC, b"three").result(10)
    values = []
    with log.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        while len(values) < 3:
            values += [record.value for record in consumer.poll(timeout=10)]
    assert values == [b"one", b"two", b"three"]
    calls, summary = run_handler(log, 3, lambda record: None)
    assert (len(calls), summary.handled, summary.failed) == (3, 3, 0)
    assert [parse_traceparent(dict(record.headers)["traceparent"].decode()).trace_id for record in calls[:2]] == [7, 7]
    assert len([line for line in caplog.records if line.name == "headrace.client"]) == 1


def test_sends_outside_of_traces_are_sampled_as_a_batch(log, application):
    """The batch has one span, its first record has the context, and consumers show it with every record."""
    application.set_provider()
    with log.producer(linger_ms=60_000) as producer:
        for number in range(5):
            producer.send(TOPIC, b"%d" % number, headers=[("own", b"1")] if number == 3 else None)
    (span,) = application.spans("send orders")
    assert span.parent is None
    assert span.attributes["messaging.batch.message_count"] == 5
    context = traceparent(span)
    assert stored_headers(log) == [[("batch-traceparent", context)], [], [], [("own", b"1")], []]
    shown = ("traceparent", context)
    with log.reader(TOPIC) as reader:
        assert [record.headers for record in reader] == [
            (shown,),
            (shown,),
            (shown,),
            (("own", b"1"), shown),
            (shown,),
        ]


def test_records_of_a_trace_that_is_not_sampled_have_no_spans(log, application):
    """The decision of the caller's trace holds: no batch with such a record is sampled anew."""
    application.set_provider()
    unsampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(0))
    with log.producer(linger_ms=60_000) as producer:
        with trace.use_span(trace.NonRecordingSpan(unsampled)):
            producer.send(TOPIC, b"one")
            producer.send(TOPIC, b"two")
            producer.flush()
            producer.send_many(TOPIC, [b"three"])
    assert stored_headers(log) == [[], [], []]
    assert application.names() == []


def test_send_many_has_a_span_below_the_callers(log, application):
    application.set_provider(root=ALWAYS_OFF)
    sampled = trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(1))
    with log.producer() as producer:
        with trace.use_span(trace.NonRecordingSpan(sampled)):
            producer.send_many(TOPIC, [b"one", b"two"], headers=[[("own", b"1")], None])
        producer.send_many(TOPIC, [b"three"])
    (span,) = application.spans("send orders")
    assert (span.parent.trace_id, span.parent.span_id) == (7, 8)
    assert stored_headers(log) == [[("own", b"1"), ("batch-traceparent", traceparent(span))], [], []]


def test_a_context_of_the_application_stays(log, application):
    """The conventions: a custom creation context is not modified, and the span links to it."""
    application.set_provider()
    given = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    with log.producer() as producer, application.tracer.start_as_current_span("request"):
        producer.send(TOPIC, b"one", headers=[("traceparent", given)])
    (span,) = application.spans("send orders")
    assert [link.context.span_id for link in span.links] == [int("b" * 16, 16)]
    assert stored_headers(log) == [[("traceparent", given)]]


def test_a_record_that_is_not_accepted_ends_its_span_as_failed(log, application):
    application.set_provider()
    with log.producer() as producer, application.tracer.start_as_current_span("request"):
        with pytest.raises(BatchTooLargeError):
            producer.send(TOPIC, bytes(20 << 20))
    (span,) = application.spans("send orders")
    assert span.attributes["error.type"] == "BATCH_TOO_LARGE"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None


@pytest.mark.parametrize("headers", [None, [("own", b"1")]])
def test_a_record_without_room_for_its_context_is_sent_without_it(log, application, headers):
    """Also the first record of a topic, whose limit the producer does not know yet."""
    log.admin.alter_config(TOPIC, {"max_batch_bytes": 4_096})
    value = bytes(4_096 - BATCH_OVERHEAD - record_cost(b"", None, headers))
    application.set_provider()
    with log.producer() as producer, application.tracer.start_as_current_span("request"):
        for _ in range(2):
            producer.send(TOPIC, value, headers=headers).result(10)
    assert stored_headers(log) == [headers or []] * 2
    assert [span.attributes["messaging.headrace.offset"] for span in application.spans("send orders")] == [0, 1]


def test_the_links_of_a_poll_are_bounded():
    """Of all its batches together: the contexts after the last link are not even looked at."""
    contexts = (b"00-%032x-%016x-01" % (number, number) for number in range(1, 4 * MAX_LINKS))
    batches = [SimpleNamespace(traceparents=lambda: islice(contexts, MAX_LINKS - 1)) for _ in range(4)]
    assert [found.span_id for found in contexts_of(batches)] == list(range(1, MAX_LINKS + 1))
    assert next(contexts).endswith(b"-%016x-01" % (MAX_LINKS + 1))


def test_a_poll_links_to_the_contexts_of_its_records(log, application):
    application.set_provider()
    with log.producer() as producer:
        producer.send_many(TOPIC, [b"one", b"two"])
        producer.flush()
        with application.tracer.start_as_current_span("request"):
            producer.send(TOPIC, b"three")
    sent = application.spans("send orders")
    with log.consumer(TOPIC, auto_offset_reset="earliest", client_id="mail") as consumer:
        received = 0
        while received < 3:
            received += len(consumer.poll(timeout=10))
        assert len(consumer.poll(timeout=0)) == 0
    spans = application.spans("receive orders")
    assert [link.context.span_id for span in spans for link in span.links] == [
        span.get_span_context().span_id for span in sent
    ]
    assert {span.kind for span in spans} == {SpanKind.CLIENT}
    assert sum(span.attributes["messaging.batch.message_count"] for span in spans) == 3
    assert spans[0].attributes["messaging.client.id"] == "mail"


def test_an_iteration_has_receive_spans(log, application):
    application.set_provider()
    with log.producer() as producer:
        producer.send_many(TOPIC, [b"one", b"two"])
    with log.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        for record in consumer:
            if record.value == b"two":
                break
    (span,) = application.spans("receive orders")
    assert span.attributes["messaging.batch.message_count"] == 2


def test_a_handler_runs_in_the_trace_of_its_record(log, application):
    """Its span is a child of the send's and current, also for records that share the context of their batch."""
    application.set_provider()
    with log.producer() as producer:
        producer.send_many(TOPIC, [b"one", b"two"])
    seen = []
    calls, _ = run_handler(log, 2, lambda record: seen.append(trace.get_current_span().get_span_context()))
    (sent,) = application.spans("send orders")
    spans = application.spans("process orders")
    assert {span.get_span_context().span_id for span in spans} == {context.span_id for context in seen}
    assert [span.parent.span_id for span in spans] == [sent.get_span_context().span_id] * 2
    assert {span.get_span_context().trace_id for span in spans} == {sent.get_span_context().trace_id}
    assert [link.context.span_id for link in spans[0].links] == [sent.get_span_context().span_id]
    assert {span.kind for span in spans} == {SpanKind.CONSUMER}
    assert {span.attributes["messaging.headrace.offset"] for span in spans} == {0, 1}
    assert spans[0].attributes["messaging.consumer.group.name"] == "billing"
    assert application.spans("receive orders") == []  # The application did not ask: the run reads ahead.
    assert all(parse_traceparent(dict(record.headers)["traceparent"].decode()) for record in calls)


def test_a_handler_of_a_record_without_a_context_has_no_span(log, application):
    with log.producer() as producer:
        producer.send_many(TOPIC, [b"one"], headers=[[("own", b"1")]])
    application.set_provider()
    run_handler(log, 1, lambda record: None)
    assert application.names() == []


def test_no_key_value_or_message_of_an_error_is_in_a_span(log, application):
    """Planted in keys, values, headers and the handler's error: no attribute, event, status or name has it."""
    application.set_provider()
    with log.producer() as producer:
        with application.tracer.start_as_current_span("request"):
            producer.send(TOPIC, SECRET, SECRET, headers=[("own", SECRET)])
            with pytest.raises(BatchTooLargeError):
                producer.send(TOPIC, SECRET * (2 << 20), SECRET)
        producer.flush()
        producer.send_many(TOPIC, [SECRET], keys=[SECRET])

    def fail(record):
        raise ValueError(record.value.decode())

    from headrace import RetryPolicy

    log.admin.create_topic("letters")
    _, summary = run_handler(log, 2, fail, retry=RetryPolicy(attempts=1), dead_letter="letters")
    assert summary.failed == 2
    with log.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        while len(consumer.poll(timeout=10)):
            if consumer.position((TOPIC, 0)) == 2:
                break
    failed = application.spans("process orders")
    assert [span.attributes["error.type"] for span in failed] == ["ValueError"] * 2
    assert set(application.names()) == {"send orders", "process orders", "receive orders", "send letters"}
    for span in application.exporter.get_finished_spans():
        assert SECRET.decode() not in span.to_json()


def test_asyncio_sends_and_handlers_are_traced(tmp_path, application):
    """The asyncio classes: a span a send, and the handler's span is current in its task and in no other."""
    application.set_provider()

    async def main():
        async with await aio.open(tmp_path / "log") as log:
            await log.admin.create_topic(TOPIC)
            async with log.producer() as producer:
                with application.tracer.start_as_current_span("request"):
                    await producer.send_and_wait(TOPIC, b"one")
                    await producer.send_and_wait(TOPIC, b"two")
            seen = {}
            async with log.consumer(TOPIC, group_id="billing", auto_offset_reset="earliest") as consumer:

                async def handle(record):
                    before = trace.get_current_span().get_span_context()
                    await asyncio.sleep(0)
                    assert trace.get_current_span().get_span_context() == before
                    seen[record.offset] = before
                    if len(seen) == 2:
                        consumer.stop()

                await consumer.run(handle, handle_signals=False)
            assert not trace.get_current_span().get_span_context().is_valid
            return seen

    seen = asyncio.run(main())
    sent = application.spans("send orders")
    spans = {span.attributes["messaging.headrace.offset"]: span for span in application.spans("process orders")}
    assert {offset: span.get_span_context() for offset, span in spans.items()} == seen
    assert [spans[offset].parent.span_id for offset in (0, 1)] == [span.get_span_context().span_id for span in sent]


def test_a_provider_may_be_set_after_the_producer_was_created(log, application):
    """From the next batch on, records are traced."""
    with log.producer() as producer:
        producer.send(TOPIC, b"one").result(10)
        application.set_provider()
        producer.send(TOPIC, b"two").result(10)
    assert application.names() == ["send orders"]


def test_spans_of_several_threads_are_each_their_callers(log, application):
    """Threads that send at once, each in a trace of its own: every record's context is that of its thread."""
    application.set_provider(root=ALWAYS_OFF)

    def send(number, producer):
        parent = trace.SpanContext(number, number, is_remote=True, trace_flags=trace.TraceFlags(number % 2))
        with trace.use_span(trace.NonRecordingSpan(parent)):
            for _ in range(50):
                producer.send(TOPIC, b"%d" % number)

    with log.producer() as producer:
        threads = [threading.Thread(target=send, args=(number, producer)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with log.reader(TOPIC) as reader:
        for record in reader:
            context = dict(record.headers).get("traceparent")
            number = int(record.value)
            assert (context is not None) == bool(number % 2)
            assert context is None or parse_traceparent(context.decode()).trace_id == number
    assert len(application.spans("send orders")) == 150
