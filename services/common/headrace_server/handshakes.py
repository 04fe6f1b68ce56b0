"""Handshake of a service: its announcement, and rejection of incompatible peers by `headrace.wire.releases`.

A starting service also checks the registered processes, and does not start if it could not read their data.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.v1 import handshake_pb2
from headrace.wire.errors import InvalidConfigError, UnsupportedVersionError
from headrace.wire.releases import CAPABILITIES, CLIENT_NEEDS, RELEASE, check_peer

from headrace_server.internal_v1 import metadata_pb2

if TYPE_CHECKING:
    from headrace_server.metadata_view import ClusterView


def own_handshake() -> handshake_pb2.Handshake:
    """Return the announcement of this process."""
    return handshake_pb2.Handshake(release=RELEASE, capabilities=CAPABILITIES)


def check_handshake(who: str, said: handshake_pb2.Handshake, needs: Collection[str] = CLIENT_NEEDS) -> None:
    """Check the compatibility of a peer; raise as `check_peer`."""
    check_peer(who, said.release, said.capabilities, needs)


def check_registered(view: ClusterView, own_name: str) -> None:
    """Check the compatibility of registered brokers and coordinators.

    A registration under the own name, such as `broker-1`, is that of an ended process and is ignored.

    Raises:
        InvalidConfigError: If one has an incompatible release; names the first.
    """
    registered: list[tuple[str, metadata_pb2.BrokerLive | metadata_pb2.CoordinatorLive]] = [
        *((f"coordinator-{name}", found.live) for name, found in sorted(view.coordinators.items())),
        *((f"broker-{broker_id}", found.live) for broker_id, found in sorted(view.brokers.items())),
    ]
    for who, live in registered:
        if who == own_name:
            continue
        try:
            check_peer(f"the registered {who}", live.version, live.capabilities)
        except UnsupportedVersionError as error:
            raise InvalidConfigError(error.message, action=error.action) from error
