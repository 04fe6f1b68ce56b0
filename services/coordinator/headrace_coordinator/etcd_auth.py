"""The command `headrace-coordinator etcd-auth`: the role and the users that a cluster needs in etcd.

The role covers the keys of this cluster and no others, so that several clusters and other programs may share an etcd.
Brokers and coordinators have the same one: who reads the cluster's secret and its signing keys there may do everything
in the cluster anyway. Passwords are read from files, and are in no output.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.keys import cluster_prefix
from headrace_server.metastore.etcd_login import EtcdLogin, EtcdRefusedError, read_password
from headrace_server.metastore.etcd_users import ROOT, EtcdUsers
from headrace_server.settings import SettingsError
from headrace_server.tls import read_tls

from headrace_coordinator.settings import CoordinatorSettings

RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class EtcdAuth:
    """Users and role of one cluster in etcd."""

    role: str
    prefix: str
    """Beginning of the keys that the role covers."""
    user: str
    """User that logs in with `password_file`; empty means none."""
    password_file: str
    certificate_users: tuple[str, ...]
    """Users by the common names of certificates."""
    root_password_file: str
    """File with the password of etcd's administrator; empty means that its certificate identifies it."""
    enables: bool
    """Whether etcd must authenticate its callers afterwards."""

    def commands(self) -> list[str]:
        """Return the commands of etcdctl that do it; they read passwords from their files."""
        role, prefix = shlex.quote(self.role), shlex.quote(self.prefix)
        lines = [
            f"etcdctl role add {role}",
            f"etcdctl role grant-permission {role} readwrite --prefix=true {prefix}",
        ]
        if self.user:
            lines.append(_user_add(self.user, self.password_file))
            lines.append(f"etcdctl user grant-role {shlex.quote(self.user)} {role}")
        for name in map(shlex.quote, self.certificate_users):
            lines += [f"etcdctl user add {name} --no-password", f"etcdctl user grant-role {name} {role}"]
        if self.enables:
            lines.append(_user_add(ROOT, self.root_password_file))
            lines += [f"etcdctl user grant-role {ROOT} {ROOT}", "etcdctl auth enable"]
        return lines


def read_etcd_auth(
    settings: CoordinatorSettings, certificate_users: Sequence[str], root_password_file: str, *, enables: bool
) -> EtcdAuth:
    """Return what the cluster of these settings needs.

    Raises:
        SettingsError: If that is no user at all.
    """
    if not settings.etcd_user and not certificate_users:
        raise SettingsError(
            "no user of etcd is named",
            action="Set etcd_user and etcd_password_file, or name the certificates with --certificate-user.",
        )
    return EtcdAuth(
        f"headrace-{settings.cluster}",
        cluster_prefix(settings.cluster),
        settings.etcd_user,
        settings.etcd_password_file,
        tuple(certificate_users),
        root_password_file,
        enables,
    )


async def apply_etcd_auth(settings: CoordinatorSettings, auth: EtcdAuth, timeout_seconds: float) -> list[str]:
    """Change in etcd what is missing, and return a line for each change. Wait for an etcd that does not answer.

    Raises:
        EtcdRefusedError: If etcd does not accept its administrator, or a password file cannot be read.
        MetastoreUnavailableError: If etcd does not answer in time; run it again.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    async with _connected(settings, auth) as users:
        while True:
            try:
                return await _apply(users, auth)
            except EtcdRefusedError:
                raise
            except MetastoreUnavailableError:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)


async def _apply(users: EtcdUsers, auth: EtcdAuth) -> list[str]:
    lines = []
    if await users.put_role(auth.role, auth.prefix):
        lines.append(f"role {auth.role} reads and writes {auth.prefix}")
    named: list[tuple[str, str | None]] = [(name, None) for name in auth.certificate_users]
    if auth.user:
        named.insert(0, (auth.user, read_password(auth.password_file)))
    for name, password in named:
        if await users.put_user(name, auth.role, password):
            lines.append(f"user {name} has role {auth.role}")
    if auth.enables:
        is_enabled = await users.is_enabled()
        root_password = read_password(auth.root_password_file) if auth.root_password_file else None
        if not is_enabled and await users.put_user(ROOT, ROOT, root_password):
            lines.append(f"user {ROOT} has role {ROOT}")
        if await users.enable():
            lines.append("etcd authenticates its callers")
    return lines


@asynccontextmanager
async def _connected(settings: CoordinatorSettings, auth: EtcdAuth) -> AsyncIterator[EtcdUsers]:
    login = EtcdLogin(ROOT, auth.root_password_file) if auth.root_password_file else None
    users = EtcdUsers(settings.etcd_endpoints, identity=read_tls(settings).etcd, login=login)
    try:
        yield users
    finally:
        await users.close()


def _user_add(user: str, password_file: str) -> str:
    if not password_file:
        return f"etcdctl user add {shlex.quote(user)} --no-password"
    return f'etcdctl user add {shlex.quote(user)} --new-user-password="$(cat {shlex.quote(password_file)})"'
