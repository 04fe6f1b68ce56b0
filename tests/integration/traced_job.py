"""A job in a program with a tracer provider: `python traced_job.py ENDPOINT MODULE ARGUMENT...`."""

import runpy
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

if __name__ == "__main__":
    endpoint, module, *arguments = sys.argv[1:]
    provider = TracerProvider(resource=Resource.create({"service.name": "jobs"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    trace.set_tracer_provider(provider)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
