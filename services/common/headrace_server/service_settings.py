"""Settings that every service has, read by `service_process`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from headrace_server.identity.posture import PostureName
from headrace_server.metastore.etcd_login import EtcdLogin
from headrace_server.settings import CommaList
from headrace_server.telemetry import LogFormat, LogLevel
from headrace_server.tls_settings import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(TlsSettings):
    """Common settings; the settings of each service inherit from them."""

    cluster: Annotated[str, Field(min_length=1, description="The cluster's name, part of every key in etcd.")] = (
        "headrace"
    )
    etcd_endpoints: Annotated[CommaList, Field(min_length=1, description="Members of the etcd cluster, host:port.")] = (
        "127.0.0.1:2379",
    )
    etcd_user: Annotated[
        str,
        Field(
            description="User in etcd, which logs in with `etcd_password_file`. If empty, etcd knows this process by "
            "the common name of `etcd_tls_cert_file`, or has no authentication."
        ),
    ] = ""
    etcd_password_file: Annotated[
        str, Field(description="File with the password of `etcd_user`; it is read again at each login.")
    ] = ""
    posture: Annotated[
        PostureName,
        Field(
            description="Handling of calls without an identity or a right: `required` refuses them, `observe` serves "
            "and counts them, `open` serves them. The cluster's posture, set by `headrace auth posture`, may be "
            "stricter. Default: `open` on loopback addresses, `observe` on others; a new cluster on others needs "
            "`required`."
        ),
    ] = ""
    insecure: Annotated[
        bool,
        Field(description="Whether this process may serve strangers beyond loopback, as `posture` says."),
    ] = False
    rights_max_age_ms: Annotated[
        int,
        Field(
            ge=0,
            le=86_400_000,
            description="Milliseconds without a message from etcd after which administrative acts are refused, because "
            "the right to them may have been taken away. Records are read and written as before. `0` disables it.",
        ),
    ] = 300_000
    metrics_listen: Annotated[
        str,
        Field(
            description="Listen address for metrics and health over HTTP, host:port. If empty, they are not served. "
            "With `posture = required` metrics need an identity with the role `monitor` on the cluster."
        ),
    ] = ""
    metrics_tls: Annotated[
        bool, Field(description="Whether `metrics_listen` serves TLS, with the certificate `tls_cert_file`.")
    ] = False
    log_level: Annotated[LogLevel, Field(description="Minimum level of log lines.")] = "info"
    log_format: Annotated[LogFormat, Field(description="Format of log lines: readable text or JSON.")] = "console"
    otlp_endpoint: Annotated[
        str,
        Field(
            description="Base URL of an OpenTelemetry collector, such as `http://collector:4318`, which gets the spans "
            "of calls whose caller is in a sampled trace, over OTLP/HTTP. If empty, the standard variables "
            "`OTEL_EXPORTER_OTLP_*` name it, or there are no spans."
        ),
    ] = ""
    loop_stall_ms: Annotated[
        int,
        Field(
            ge=1_000,
            le=600_000,
            description="Milliseconds for which the event loop may be blocked before liveness fails.",
        ),
    ] = 10_000
    ready_file: Annotated[
        str, Field(description="JSON file that is written once the process serves. Default: none.")
    ] = ""

    def check_common(self) -> None:
        """Check that related settings are set together; called by `__post_init__` of a service's settings."""
        self.check_tls()
        if bool(self.etcd_user) != bool(self.etcd_password_file):
            raise ValueError("etcd_user and etcd_password_file must be set together")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp_endpoint={self.otlp_endpoint} is not a URL: write http://HOST:4318")
        if self.metrics_tls and not self.tls_cert_file:
            raise ValueError("metrics_tls needs tls_cert_file")

    @property
    def etcd_login(self) -> EtcdLogin | None:
        """New login at etcd; `None` without a user."""
        return EtcdLogin(self.etcd_user, self.etcd_password_file) if self.etcd_user else None

    @property
    def internal_listens(self) -> tuple[str, ...]:
        """Listen addresses for brokers and coordinators, host:port."""
        return ()

    @property
    def client_listens(self) -> tuple[str, ...]:
        """Listen addresses for clients, host:port."""
        raise NotImplementedError
