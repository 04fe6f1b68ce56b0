"""Ports of 127.0.0.1 for processes that are started, killed and started again on the port they had."""

from __future__ import annotations

import os
import socket


class ReservedPort(int):
    """A port of the kernel's choice, which it gives to nobody else while this object lives.

    A socket is bound to it (SO_REUSEADDR) and does not listen: the kernel takes the port for no connection and for
    nobody who asks for port 0, and a server that names it listens there none the less.
    """

    _descriptor: int

    def __new__(cls) -> ReservedPort:
        """Raises OSError where no port is left."""
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port = super().__new__(cls, holder.getsockname()[1])
            port._descriptor = holder.detach()
        return port

    def __del__(self) -> None:
        os.close(self._descriptor)
