"""The sockets of this process at a listener of gRPC's, which gRPC for Python does not hand out."""

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
"""Linux's; Python has no name for it."""
LOAD_BYTE, LOAD_WORD, AND, JUMP, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
IP_HEADER = 0xFFF00000
"""Where a classic BPF program finds it (SKF_NET_OFF in linux/filter.h)."""
WORD = 0xFFFFFFFF
GRPCS, OURS = 0, 1

Instruction = tuple[int, int, int, int]


def sockets(port: int) -> Iterator[tuple[socket.socket, Any]]:
    """Each socket at the local `port`, as a duplicate until the next one is asked for, and its peer; None: it listens.

    Raises:
        OSError: there is no descriptor left to look with.
    """
    for descriptor in sorted(map(int, os.listdir("/dev/fd"))):
        with contextlib.suppress(OSError):  # It is closed by now, or not connected.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.fromfd(descriptor, socket.AF_INET6, socket.SOCK_STREAM) as found:
                    name = found.getsockname()
                    if isinstance(name, tuple) and name[1] == port:
                        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                        yield found, None if listens else found.getpeername()


def end(port: int, ending: Collection[tuple[str, int]]) -> None:
    """Shut down the connections of these callers and ports of theirs: gRPC sees ones that their clients have closed.

    May be called in any thread.

    Raises:
        OSError: there is no descriptor left to look with.
    """
    for connection, peer in sockets(port):
        if peer is not None and (caller(peer[0]), peer[1]) in ending:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Diversion:
    """Sockets next to the listener's that never accept: connections of blocked callers are diverted to them.

    gRPC listens with SO_REUSEPORT, so a socket of ours may listen there, too, and a program of ours tells the kernel
    which of the two a connection is for. That needs no privilege. Of ours the kernel fills the queue and drops what
    comes then.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._decoys: list[socket.socket] = []

    def keep_out(self, callers: Collection[str]) -> None:
        """Divert new connections of these callers only; one thread at a time.

        Raises:
            OSError: the system has nothing of the kind (it is Linux's), or there is no descriptor left.
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
        """Stop diverting: without our sockets the program has no effect."""
        while self._decoys:
            self._decoys.pop().close()


def _listen_beside(listener: socket.socket) -> socket.socket:
    name = listener.getsockname()
    decoy = socket.socket(socket.AF_INET if len(name) == 2 else socket.AF_INET6)
    try:
        decoy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Next to others that are bound and do not listen.
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
    """Build the program that says 1, our socket, of these callers' connections, and 0, gRPC's, of all others."""
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
