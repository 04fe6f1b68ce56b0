"""Ports of 127.0.0.1 for processes that are killed and restarted on the same port."""

from __future__ import annotations

import os
import socket


class ReservedPort(int):
    """Port that the kernel chose and keeps reserved while this object exists.

    A socket is bound to it (SO_REUSEADDR) and does not listen: the kernel assigns the port
    neither to a connection nor to a bind to port 0, while a server that binds it by number can listen on it.
    """

    _descriptor: int

    def __new__(cls) -> ReservedPort:
        """Reserve a port. Raises OSError if no port is free."""
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port = super().__new__(cls, holder.getsockname()[1])
            port._descriptor = holder.detach()
        return port

    def __del__(self) -> None:
        os.close(self._descriptor)
