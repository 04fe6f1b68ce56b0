"""How a node follows the metadata: the shipped `PrefixView` and `ClusterView` over a simulated watch (H80, I19).

`PrefixView.run` is asyncio; its two synchronous halves, taking in a list and taking in an event, are driven from here.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.wire.errors import MetastoreUnavailableError
from headrace_server.clock import Clock
from headrace_server.cluster_identity import ClusterIdentity
from headrace_server.metadata_view import ClusterView
from headrace_server.metastore.api import Metastore, MetastoreRolledBackError, WatchEvents
from headrace_server.metastore.view import PrefixView

from tests.simulation.etcd import EtcdClient
from tests.simulation.world import Process, World, sleep, spawn

RETRY_MS = 150


class Metadata:
    """One process's cache of etcd."""

    def __init__(
        self,
        world: World,
        process: Process,
        etcd: EtcdClient,
        clock: Clock,
        identity: ClusterIdentity,
        *,
        relist_ms: int,
        on_rolled_back: Callable[[], None],
    ) -> None:
        self._world = world
        self._process = process
        self._etcd = etcd
        self._identity = identity
        self._relist_ms = relist_ms
        self._on_rolled_back = on_rolled_back
        self._watches = 0
        self._held: list[WatchEvents] | None = None
        metastore: Metastore = etcd  # type: ignore[assignment]  # only `load` and `run` would use more of it
        self.source = PrefixView(metastore, identity.keyspace.prefix, clock)
        self.view: ClusterView

    async def load(self) -> None:
        """Read everything, however long it takes."""
        while True:
            try:
                self.source._take_list(await self._etcd.range(self._identity.keyspace.prefix))
            except MetastoreRolledBackError:
                self._on_rolled_back()
            except MetastoreUnavailableError:
                await sleep(self._world, self._process, RETRY_MS)
            else:
                self.view = ClusterView(self._identity, self.source)
                return

    def follow(self) -> None:
        """Watch from behind what is known, and read everything again now and then."""
        self._watch()
        spawn(self._process, self._relist())

    def _watch(self) -> None:
        self._watches += 1
        number = self._watches
        prefix = self._identity.keyspace.prefix
        self._etcd.watch(
            prefix,
            self.source.revision + 1,
            lambda item: self._take(item, number),
            lambda: self._world.after(RETRY_MS, self._process, "", lambda: self._watch_again(number)),
            lambda: spawn(self._process, self._read_again(number)),
        )

    def _watch_again(self, number: int) -> None:
        if number == self._watches:
            self._watch()

    def _take(self, item: WatchEvents, number: int) -> None:
        if number != self._watches:
            return  # The iterator of a stream that was closed gives nothing more.
        if self._held is not None:
            self._held.append(item)
            return
        self.source._take_item(item)

    async def _read_again(self, number: int) -> None:
        """The watch came too late: as `PrefixView.run` after a compaction."""
        while number == self._watches:
            await sleep(self._world, self._process, RETRY_MS)
            try:
                self.source._take_list(await self._etcd.range(self._identity.keyspace.prefix))
            except MetastoreRolledBackError:
                self._on_rolled_back()
                return
            except MetastoreUnavailableError:
                continue
            self._watch_again(number)

    async def _relist(self) -> None:
        while True:
            await sleep(self._world, self._process, self._relist_ms)
            self._held = []
            try:
                self.source._take_list(await self._etcd.range(self._identity.keyspace.prefix))
            except MetastoreRolledBackError:
                self._on_rolled_back()
                return
            except MetastoreUnavailableError:
                pass
            held, self._held = self._held, None
            for item in held:
                self.source._take_item(item)
