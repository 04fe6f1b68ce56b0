"""What a process leaves open beyond loopback addresses, for `headrace doctor`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.v1 import auth_pb2, process_pb2
from headrace.wire.addresses import is_loopback

from headrace_server.service_settings import ServiceSettings


def open_access(
    settings: ServiceSettings, posture: auth_pb2.Posture, *, etcd_requires_user: bool
) -> Iterator[process_pb2.OpenAccess]:
    """Yield what is open, ascending.

    Args:
        posture: the posture in force.
        etcd_requires_user: whether etcd is known, or by a client certificate may be assumed, to require a user.
    """
    etcd_is_far = _is_beyond_loopback(settings.etcd_endpoints)
    metrics_are_far = _is_beyond_loopback([settings.metrics_listen] if settings.metrics_listen else [])
    if settings.clients_files is None and _is_beyond_loopback(settings.client_listens):
        yield process_pb2.OPEN_ACCESS_CLIENTS_WITHOUT_TLS
    if settings.internal_files is None and _is_beyond_loopback(settings.internal_listens):
        yield process_pb2.OPEN_ACCESS_SERVERS_WITHOUT_TLS
    if settings.etcd_files is None and etcd_is_far:
        yield process_pb2.OPEN_ACCESS_ETCD_WITHOUT_TLS
    if etcd_is_far and not etcd_requires_user:
        yield process_pb2.OPEN_ACCESS_ETCD_WITHOUT_USERS
    if metrics_are_far and posture != auth_pb2.POSTURE_REQUIRED:
        yield process_pb2.OPEN_ACCESS_METRICS_WITHOUT_IDENTITY
    if metrics_are_far and not settings.metrics_tls:
        yield process_pb2.OPEN_ACCESS_METRICS_WITHOUT_TLS


def _is_beyond_loopback(addresses: Iterable[str]) -> bool:
    return not all(map(is_loopback, addresses))
