"""The user by which the processes of a local cluster log in at its etcd, and the secrets of the cluster's directory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from headrace_coordinator.etcd_auth import apply_etcd_auth, read_etcd_auth
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.settings import load_settings

from headrace_devcluster.secret_files import keep_secret

USER = "headrace"
TIMEOUT_SECONDS = 30.0


class EtcdUser:
    """See the module. The passwords are in files of `directory`."""

    def __init__(self, directory: Path) -> None:
        self._password_file = directory / "etcd.password"
        self._root_password_file = directory / "etcd-root.password"

    @property
    def settings(self) -> dict[str, object]:
        """Settings of brokers and coordinators; none if etcd has no user, now and since the directory was made."""
        if not self._password_file.exists():
            return {}
        return {"etcd_user": USER, "etcd_password_file": self._password_file}

    def require(self, etcd_settings: Mapping[str, object]) -> None:
        """Let a running etcd require users, and give this one its rights. Call it in a thread without an event loop.

        Raises:
            EtcdRefusedError, MetastoreUnavailableError: As `apply_etcd_auth`.
        """
        keep_secret(self._password_file, secrets.token_urlsafe)
        keep_secret(self._root_password_file, secrets.token_urlsafe)
        given = {"coordinator_id": "local", **etcd_settings, **self.settings}
        settings = load_settings(CoordinatorSettings, overrides={name: str(value) for name, value in given.items()})
        auth = read_etcd_auth(settings, (), str(self._root_password_file), enables=True)
        asyncio.run(apply_etcd_auth(settings, auth, TIMEOUT_SECONDS))
