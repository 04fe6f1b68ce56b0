"""Whether all servers of a cluster know its administrator: each hears of users and signing keys from etcd by itself."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from headrace.v1 import auth_pb2, auth_pb2_grpc

TIMEOUT_SECONDS = 5.0


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Open a channel with a connection of its own; without credentials in plain text."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials, options=options)


def find_refusal(addresses: Iterable[str], credentials: grpc.ChannelCredentials | None, api_key: str) -> str:
    """Return a clause about a server that refuses a session of the API key yet; empty if there is none.

    The first address opens the session.
    """
    token = ""
    for address in addresses:
        with open_channel(address, credentials) as channel:
            sessions = auth_pb2_grpc.SessionServiceStub(channel)
            try:
                opened = sessions.OpenSession(auth_pb2.OpenSessionRequest(api_key=api_key), timeout=TIMEOUT_SECONDS)
                token = token or opened.token
                bearer = (("authorization", f"Bearer {token}"),)
                sessions.WhoAmI(auth_pb2.WhoAmIRequest(), timeout=TIMEOUT_SECONDS, metadata=bearer)
            except grpc.RpcError as error:
                return f"the server at {address} does not know the administrator ({error.code().name})"
    return ""
