"""Schema registry of one coordinator: its view, its stores and its listener, which the app loads, starts and stops."""

from __future__ import annotations

from functools import partial

import structlog
from headrace_server.http_listener import HttpListener
from headrace_server.identity.gate import IdentityGate
from headrace_server.identity.session_service import TokenVerifier
from headrace_server.keys import Keyspace
from headrace_server.metastore.view import PrefixView
from headrace_server.service_process import ServiceProcess

from headrace_coordinator.metrics import CoordinatorMetrics
from headrace_coordinator.rpc.schema_requests import SchemaRequests
from headrace_coordinator.rpc.schema_routes import MAX_BODY_BYTES, SchemaRoutes, refuse
from headrace_coordinator.runtime.ambiguous_writes import AmbiguousWriteResolver
from headrace_coordinator.runtime.metadata_limits import MetadataLimits
from headrace_coordinator.runtime.schema_parser import SchemaParser
from headrace_coordinator.runtime.schema_store import SchemaStore
from headrace_coordinator.runtime.schema_view import SchemaView
from headrace_coordinator.settings import CoordinatorSettings

log = structlog.get_logger(__name__)

SETTING = "schema_registry_listen"


class RegistryServer:
    """Registry that serves if the settings have an address for it. Belongs to the event loop."""

    def __init__(
        self, process: ServiceProcess, keyspace: Keyspace, settings: CoordinatorSettings, metrics: CoordinatorMetrics
    ) -> None:
        self._process = process
        self._keyspace = keyspace
        self._settings = settings
        self._metrics = metrics
        self._listener: HttpListener | None = None
        self.sources: list[PrefixView] = []
        """Views to load before `start`, and to run."""
        if settings.schema_registry_listen:
            self.sources.append(PrefixView(process.metastore, keyspace.schema_registry_prefix, process.clock))

    async def start(
        self, gate: IdentityGate, tokens: TokenVerifier, writes: AmbiguousWriteResolver, limits: MetadataLimits
    ) -> str:
        """Listen and return the bound address, empty if it does not serve; raise as `HttpListener.start`."""
        settings, metrics, tls = self._settings, self._metrics, self._process.tls.clients
        if not self.sources:
            return ""
        (source,) = self.sources
        view = SchemaView(self._keyspace, source)
        parser = SchemaParser(view)
        store = SchemaStore(writes, source, view, self._keyspace, parser, limits, max_bytes=settings.max_schema_bytes)
        routes = SchemaRoutes(
            SchemaRequests(view, parser, store).routes(), gate, tokens, metrics, timeout_ms=settings.default_timeout_ms
        )
        context = None if tls is None else partial(tls.server_context, settings.tls_client_auth)
        self._listener = HttpListener(routes.handle, refuse, max_body_bytes=MAX_BODY_BYTES, context=context)
        metrics.schemas.set_function(lambda: len(view.schemas))
        metrics.schema_subjects.set_function(lambda: len(view.subjects))
        metrics.schema_bytes.set_function(lambda: view.stored_bytes)
        address = await self._listener.start(SETTING, settings.schema_registry_listen)
        log.info("schema_registry_serves", address=address)
        return address

    async def stop(self, grace_seconds: float) -> None:
        """See `HttpListener.stop`."""
        if self._listener is not None:
            await self._listener.stop(grace_seconds)
