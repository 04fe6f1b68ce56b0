"""Metastores that must behave alike: a real etcd, SQLite in a file, and the in-memory fake."""

import asyncio
import contextlib

import pytest
from headrace_devcluster.etcd import Etcd, make_members
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.etcd_lease import EtcdLeaseRenewer
from headrace_server.metastore.local import LocalLeaseRenewer
from headrace_server.metastore.sqlite import TICK_SECONDS, open_sqlite

from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_metastore import MemoryLeaseRenewer, MemoryMetastore


class World:
    """One metastore under test; every scenario has a prefix of its own."""

    def __init__(self, prefix):
        self.prefix = prefix

    def key(self, name):
        return self.prefix + name

    @contextlib.asynccontextmanager
    async def connected(self):
        store = self.connect()
        try:
            await store.status()  # As each process does first: what follows depends on the release of etcd.
            yield store
        finally:
            await store.close()


class MemoryWorld(World):
    """The fake; time passes when told."""

    def connect(self):
        self.clock = ManualClock()
        self.store = MemoryMetastore(clock=self.clock)
        return self.store

    def let_leases_end(self, milliseconds):
        self.clock.advance(milliseconds)
        self.store.expire_leases()

    def renewer(self):
        return MemoryLeaseRenewer(self.store, asyncio.get_running_loop())


class SqliteWorld(World):
    """A database in a file; time passes by itself."""

    def __init__(self, prefix, path):
        super().__init__(prefix)
        self.path = path

    @contextlib.asynccontextmanager
    async def connected(self):
        async with asyncio.TaskGroup() as tasks:
            self.store = open_sqlite(self.path)
            running = tasks.create_task(self.store.run(TICK_SECONDS))
            try:
                yield self.store
            finally:
                running.cancel()
                await self.store.close()

    def let_leases_end(self, milliseconds):
        """Nothing to do: the scenario waits for the event."""

    def renewer(self):
        return LocalLeaseRenewer(self.store, asyncio.get_running_loop())


class EtcdWorld(World):
    """A real etcd; time passes by itself, and a test waits for what it brings."""

    def __init__(self, prefix, etcd):
        super().__init__(prefix)
        self.etcd = etcd

    def connect(self):
        return EtcdMetastore([self.etcd.endpoint])

    def let_leases_end(self, milliseconds):
        """Nothing to do: the scenario waits for the event."""

    def renewer(self):
        return EtcdLeaseRenewer([self.etcd.endpoint])


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory):
    """One etcd for all scenarios that leave it running."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def own_etcd(tmp_path):
    """An etcd that the test may pause, stop and start again."""
    with Etcd(tmp_path / "etcd") as etcd:
        yield etcd


@pytest.fixture
def etcd_members(tmp_path):
    """Three members of one etcd that the test may pause."""
    members = make_members(tmp_path, 3)
    try:
        for member in members:
            member.launch()
        for member in members:
            member.wait_until_healthy()
        yield members
    finally:
        for member in members:
            member.kill()


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def world(request, tmp_path):
    """Each metastore."""
    prefix = f"/contract/{request.node.originalname}/"
    if request.param == "memory":
        return MemoryWorld(prefix)
    if request.param == "sqlite":
        return SqliteWorld(prefix, tmp_path / "metastore.sqlite")
    return EtcdWorld(prefix, request.getfixturevalue("shared_etcd"))


@pytest.fixture
def store(world):
    """A client of it."""
    return world.connected()
