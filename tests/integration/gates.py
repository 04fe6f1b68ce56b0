"""TCP relays whose traffic a test stops, cuts, slows down, or lets pass in one direction only."""

from __future__ import annotations

import contextlib
import socket
import threading

REQUESTS, ANSWERS = "requests", "answers"
"""Directions: to the address behind the gate, and from it."""


class Gate:
    """A TCP relay to one address. Shut, connections stay open and no byte passes, as behind a dead switch."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open = {direction: threading.Event() for direction in (REQUESTS, ANSWERS)}
        self._closing = threading.Event()
        self._bytes_per_second = 0
        self._is_cut = False
        self._sockets: list[socket.socket] = []
        self.open()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.open()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._close_connections()

    def shut(self, *directions: str) -> None:
        """Let nothing pass from now on in these directions; without any, in both."""
        for direction in directions or self._open:
            self._open[direction].clear()

    def cut(self) -> None:
        """Close all connections, and each new one at once."""
        self._is_cut = True
        self._close_connections()

    def slow(self, bytes_per_second: int) -> None:
        """Limit each direction of each connection."""
        self._bytes_per_second = bytes_per_second

    def open(self) -> None:
        """Let everything pass again, also what came meanwhile."""
        self._is_cut, self._bytes_per_second = False, 0
        for event in self._open.values():
            event.set()

    def _close_connections(self) -> None:
        while self._sockets:
            each = self._sockets.pop()
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            near = None
            try:
                near, _ = self._server.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection((self._host, self._port))
            except OSError:
                if near is not None:
                    near.close()  # The address behind the gate has no listener.
                if self._closing.is_set():
                    return
                continue
            self._sockets += [near, far]
            for source, sink, direction in ((near, far, REQUESTS), (far, near, ANSWERS)):
                threading.Thread(target=self._relay, args=(source, sink, direction), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if rate := self._bytes_per_second:
                    self._closing.wait(len(data) / rate)
                self._open[direction].wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
