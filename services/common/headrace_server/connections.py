"""Access to the sockets of a listener in this process; gRPC for Python does not expose its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from ipaddress import ip_network
from typing import Any

from headrace_server.places import caller

SO_ATTACH_REUSEPORT_CBPF = 51
"""Linux socket option; Python has no constant for it."""
LOAD_BYTE, LOAD_WORD, AND, JUMP, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
IP_HEADER = 0xFFF00000
"""Offset of the IP header in a classic BPF program (SKF_NET_OFF in linux/filter.h)."""
WORD = 0xFFFFFFFF
GRPCS, OURS = 0, 1

Instruction = tuple[int, int, int, int]


def sockets(port: int) -> Iterator[tuple[socket.socket, Any]]:
    """Yield a duplicate of each socket at the local `port`, closed at the next step, and its peer (`None`: listening).

    Raises:
        OSError: If there are no free descriptors.
    """
    for descriptor in sorted(map(int, os.listdir("/dev/fd"))):
        with contextlib.suppress(OSError):  # Already closed, or not connected.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.fromfd(descriptor, socket.AF_INET6, socket.SOCK_STREAM) as found:
                    name = found.getsockname()
                    if isinstance(name, tuple) and name[1] == port:
                        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                        yield found, None if listens else found.getpeername()


def end(port: int, ending: Collection[tuple[str, int]]) -> None:
    """Shut down the connections of these callers and remote ports; gRPC handles them as closed by the client.

    Thread-safe.

    Raises:
        OSError: If there are no free descriptors.
    """
    for connection, peer in sockets(port):
        if peer is not None and (caller(peer[0]), peer[1]) in ending:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Diversion:
    """Listening sockets that never accept, to which the kernel diverts connections of blocked callers.

    The listener has SO_REUSEPORT, so that another socket can listen at the same port, and a BPF program selects
    the socket of each connection. That needs no privilege. The kernel fills the queue of the other socket and drops
    further connections.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._decoys: list[socket.socket] = []

    def keep_out(self, callers: Collection[str]) -> None:
        """Divert new connections of exactly these callers. Not thread-safe.

        Raises:
            OSError: If the system is not Linux, or there are no free descriptors.
        """
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program_of(callers)))
        for listener, peer in sockets(self._port):
            if peer is None:
                program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
                listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
                name = listener.getsockname()
                if name not in [decoy.getsockname() for decoy in self._decoys]:
                    self._decoys.append(_listen_beside(listener))

    def close(self) -> None:
        """Stop diverting: without the sockets the program has no effect."""
        while self._decoys:
            self._decoys.pop().close()


def _listen_beside(listener: socket.socket) -> socket.socket:
    name = listener.getsockname()
    decoy = socket.socket(socket.AF_INET if len(name) == 2 else socket.AF_INET6)
    try:
        decoy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Sockets may be bound there without listening.
        decoy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if decoy.family == socket.AF_INET6:
            only_6 = listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            decoy.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_6)
        decoy.bind(name)
        decoy.listen(8)
    except OSError:
        decoy.close()
        raise
    return decoy


def program_of(callers: Collection[str]) -> list[Instruction]:
    """Return the program that selects 1 (the diversion) for these callers, and 0 (the listener) for all others."""
    version_4: list[Instruction] = [(LOAD_WORD, 0, 0, IP_HEADER + 12)]
    version_6: list[Instruction] = []
    for network in map(ip_network, callers):
        first = int(network.network_address)
        if network.version == 4:
            version_4 += [(JUMP_IF_EQUAL, 0, 1, first), (RETURN, 0, 0, OURS)]
        else:
            version_6 += [(LOAD_WORD, 0, 0, IP_HEADER + 8), (JUMP_IF_EQUAL, 0, 3, first >> 96)]
            version_6 += [(LOAD_WORD, 0, 0, IP_HEADER + 12), (JUMP_IF_EQUAL, 0, 1, first >> 64 & WORD)]
            version_6 += [(RETURN, 0, 0, OURS)]
    version_4.append((RETURN, 0, 0, GRPCS))
    head = [(LOAD_BYTE, 0, 0, IP_HEADER), (AND, 0, 0, 0xF0), (JUMP_IF_EQUAL, 1, 0, 0x40), (JUMP, 0, 0, len(version_4))]
    return [*head, *version_4, *version_6, (RETURN, 0, 0, GRPCS)]
