import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler


class Application:
    """An application that may set a tracer provider, for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.exporter = InMemorySpanExporter()
        self.tracer = trace.NoOpTracer()

    def set_provider(self, root: Sampler = ALWAYS_ON) -> None:
        """Set a provider whose sampler follows the parent and asks `root` about new traces."""
        provider = TracerProvider(sampler=ParentBased(root))
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        self.tracer = provider.get_tracer("application")

    def spans(self, name: str) -> list:
        """Return the ended spans of this name, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def names(self) -> list[str]:
        """Return the names of the ended spans of the library, sorted."""
        own = [
            span
            for span in self.exporter.get_finished_spans()
            if span.instrumentation_scope is not None and span.instrumentation_scope.name == "headrace"
        ]
        return sorted(span.name for span in own)


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Application:
    return Application(monkeypatch)
