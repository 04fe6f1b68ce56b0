"""Client listener that a broker and a coordinator share in a cluster in one process.

The broker starts and stops the server, and serves no other listener of gRPC: no other broker is there to use one. The
coordinator loads and runs `identity_source`, serves the sessions, and writes the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_server.identity.gate import IdentityGate
from headrace_server.metastore.view import PrefixView
from headrace_server.rpc import RpcServer


@dataclass(frozen=True, slots=True)
class ClientFront:
    """The server and the gate of all its calls. Belongs to the event loop."""

    server: RpcServer
    gate: IdentityGate
    identity_source: PrefixView
