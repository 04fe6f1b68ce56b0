"""Access to the sockets of a listener in this process; gRPC for Python does not expose its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from headrace_server.places import caller

SO_ATTACH_REUSEPORT_CBPF = 51
"""Linux socket option; Python has no constant for it."""
LOAD_BYTE, LOAD_WORD, AND, JUMP, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
IP_HEADER = 0xFFF00000
"""Offset of the IP header in a classic BPF program (SKF_NET_OFF in linux/filter.h)."""
RANDOM_WORD = 0xFFFFF038
"""Offset of a random number (SKF_AD_OFF + SKF_AD_RANDOM)."""
WORD = 0xFFFFFFFF
GRPCS, OURS = 0, 1
CALLERS_BYTES = 19_456
"""Of a filter in the kernel: net.core.optmem_max (20,480 before Linux 6.8) without 1 KiB for the rest of it."""
DECOY_BACKLOG = 8

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


@dataclass(frozen=True, slots=True)
class Filter:
    """Whose new connections are accepted."""

    callers: tuple[str, ...] = ()
    """None of these callers."""
    served: tuple[str, ...] = ()
    """Always of these."""
    one_of: int = 1
    """Of the connections of others, one of this number, at random."""


def bytes_of(caller_name: str) -> int:
    """Return how much of a filter in the kernel a caller takes at most: there a load becomes 64 bytes, others 16."""
    return 176 if ":" in caller_name else 32


class Diversion:
    """Listening sockets to which the kernel diverts connections that are not to be accepted; they are reset.

    The listener has SO_REUSEPORT, so that another socket can listen at the same port, and a BPF program selects
    the socket of each connection. That needs no privilege. The kernel fills the queue of the other socket and drops
    further connections, of which TCP tries again.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._decoys: list[socket.socket] = []

    def keep_out(self, wanted: Filter) -> None:
        """Replace the filter; after a failure call it again, the listener may be filtered in part. Not thread-safe.

        Raises:
            OSError: If the system is not Linux, or there are no free descriptors.
        """
        if self._decoys:
            for decoy in self._decoys:
                _attach(decoy, wanted)
            return
        try:
            for listener, peer in sockets(self._port):
                if peer is None:
                    _attach(listener, wanted)
                    self._decoys.append(_listen_beside(listener))
        except OSError:
            self.close()  # Else the next call would take those that are there for all.
            raise

    def reset(self) -> None:
        """Reset the diverted connections, so that a client notices; of a flood the kernel has dropped most."""
        for decoy in self._decoys:
            with contextlib.suppress(OSError):  # None is left, or there are no free descriptors.
                for _ in range(DECOY_BACKLOG + 1):
                    connection, _ = decoy.accept()
                    with connection:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))

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
        decoy.listen(DECOY_BACKLOG)
        decoy.setblocking(False)
    except OSError:
        decoy.close()
        raise
    return decoy


def _attach(listener: socket.socket, wanted: Filter) -> None:
    """Filter the connections of all sockets that listen at the address of this one."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program_of(wanted)))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)


def program_of(wanted: Filter) -> list[Instruction]:
    """Return the program that selects 0 (the listener) for connections to be accepted, and 1 (the diversion) else."""
    version_4: list[Instruction] = [(LOAD_WORD, 0, 0, IP_HEADER + 12)]
    version_6: list[Instruction] = []
    verdicts = [(caller, OURS) for caller in wanted.callers] + [(caller, GRPCS) for caller in wanted.served]
    for caller_name, verdict in verdicts:
        network = ip_network(caller_name)
        first = int(network.network_address)
        if network.version == 4:
            version_4 += [(JUMP_IF_EQUAL, 0, 1, first), (RETURN, 0, 0, verdict)]
        else:
            version_6 += [(LOAD_WORD, 0, 0, IP_HEADER + 8), (JUMP_IF_EQUAL, 0, 3, first >> 96)]
            version_6 += [(LOAD_WORD, 0, 0, IP_HEADER + 12), (JUMP_IF_EQUAL, 0, 1, first >> 64 & WORD)]
            version_6 += [(RETURN, 0, 0, verdict)]
    others: list[Instruction] = [(RETURN, 0, 0, GRPCS)]
    if wanted.one_of > 1:
        draw = (JUMP_IF_AT_LEAST, 0, 1, (WORD + 1) // wanted.one_of)
        others = [(LOAD_WORD, 0, 0, RANDOM_WORD), draw, (RETURN, 0, 0, OURS), *others]
    version_4 += others
    head = [(LOAD_BYTE, 0, 0, IP_HEADER), (AND, 0, 0, 0xF0), (JUMP_IF_EQUAL, 1, 0, 0x40), (JUMP, 0, 0, len(version_4))]
    return [*head, *version_4, *version_6, *others]
