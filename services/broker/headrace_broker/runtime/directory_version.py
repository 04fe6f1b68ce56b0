"""Version of the data directory in etcd, by which an older copy of either is recognized (H16, H42, H81).

The version is raised first on the disk and then in etcd, at each registration, every VERSION_SECONDS while records are
written or the metadata changes, and when a clean stop has closed all logs. A directory with a lower version than etcd's
is an older copy. If etcd has the version at a lower revision than the directory has recorded, etcd was restored: see
`Registration`. A copy made within the last VERSION_SECONDS before a crash cannot be recognized.
"""

from __future__ import annotations

import asyncio
import secrets

from headrace.log.directory import DataDirectory
from headrace_server.metastore.view import PrefixView

from headrace_broker.runtime.directory_calls import DirectoryCalls
from headrace_broker.runtime.registration import Registration
from headrace_broker.runtime.replica_manager import ReplicaManager

VERSION_SECONDS = 2.0
"""Interval of a small write to etcd, under a prefix without watchers, and an fsync: 50 writes/s for 100 brokers."""


class StoredSessions:
    """`registration.Storage` in a data directory."""

    def __init__(self, directory: DataDirectory, calls: DirectoryCalls) -> None:
        self._directory = directory
        self._calls = calls
        self._draw_storage_id = secrets.token_bytes

    @property
    def storage_id(self) -> bytes:
        """See `Storage`."""
        return self._directory.storage_id

    @property
    def incarnation(self) -> bytes:
        """See `Storage`."""
        return self._directory.boot.incarnation

    @property
    def clean_broker_epoch(self) -> int | None:
        """See `Storage`."""
        return self._directory.clean_broker_epoch

    @property
    def version(self) -> int:
        """See `Storage`."""
        return self._directory.session.version

    @property
    def announced(self) -> int:
        """See `Storage`."""
        return self._directory.session.announced

    async def note_session(self, version: int, broker_epoch: int | None = None, announced: int | None = None) -> None:
        """See `Storage`."""
        directory = self._directory
        epoch = directory.session.broker_epoch if broker_epoch is None else broker_epoch
        revision = directory.session.announced if announced is None else announced
        await self._calls.run(lambda: directory.session.write(version, epoch, revision))

    async def become_another(self) -> None:
        """See `Storage`."""
        storage_id = self._draw_storage_id(16)
        await self._calls.run(lambda: self._directory.become(storage_id))


async def keep_version(replica_manager: ReplicaManager, source: PrefixView, registration: Registration) -> None:
    """Raise the directory's version while logs grow or the metadata changes, until cancelled."""
    announced = -1, -1
    while True:
        await asyncio.sleep(VERSION_SECONDS)
        written = sum(found.log_end_offset for each in replica_manager.partitions if (found := each.log) is not None)
        reached = written, source.changed_revision
        if reached != announced and await registration.announce_version():
            announced = reached
