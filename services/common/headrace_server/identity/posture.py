"""Posture: what a server does with calls that lack an identity or a right, as its settings allow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from headrace.v1 import auth_pb2
from headrace.wire.addresses import is_loopback

from headrace_server.settings import SettingsError

PostureName = Literal["", "open", "observe", "required"]
POSTURES: Mapping[str, auth_pb2.Posture] = MappingProxyType(
    {
        "open": auth_pb2.POSTURE_OPEN,
        "observe": auth_pb2.POSTURE_OBSERVE,
        "required": auth_pb2.POSTURE_REQUIRED,
    }
)


def least_posture(posture: str, *, insecure: bool, listens: Iterable[str], is_new: bool) -> auth_pb2.Posture:
    """Return the least strict posture that the settings of a process allow.

    Args:
        posture: the setting; empty: `open` on loopback addresses, else `observe`.
        insecure: the setting.
        listens: addresses for clients, host:port.
        is_new: whether the cluster is being created.

    Raises:
        SettingsError: If strangers would be served: a new cluster beyond loopback needs `required`, an old one at least
            `observe`, except with `insecure`.
    """
    beyond = [listen for listen in listens if not is_loopback(listen)]
    wanted = POSTURES[posture or ("observe" if beyond and not insecure else "open")]
    least = auth_pb2.POSTURE_REQUIRED if is_new else auth_pb2.POSTURE_OBSERVE
    if beyond and not insecure and wanted < least:
        raise SettingsError(
            f"everyone who reaches {beyond[0]} could read, write and administer everything",
            action="Set posture = required and make a first administrator (headrace-coordinator bootstrap-admin), or "
            "insecure = true in a network that only trusted programs reach.",
        )
    return wanted
