"""In-memory copy of a prefix of etcd, kept up to date by a watch; base of the metadata caches (PROTOCOL H80, H81, I19).

`load` reads the whole prefix at one revision; `run`, a task of the owner, follows the changes from there and applies
them by whole revision. It never skips a change: after a broken watch it resumes after the last applied revision. If
that was compacted, if the stream falls silent, and every `relist_interval_s` as a check of the watch, it reads the
whole prefix again and applies the difference. If a revision of etcd or of one key goes back, or another etcd cluster
responds, `run` raises and the service must stop.

The view may be stale. A decision based on it must be checked by compare-and-swap.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence

import structlog
from headrace.wire.errors import MetastoreUnavailableError, TimedOutError

from headrace_server.clock import Clock
from headrace_server.metastore.api import (
    CompactedError,
    KeyValue,
    Metastore,
    MetastoreRolledBackError,
    PutEvent,
    RangeResult,
    WatchEvents,
)

log = structlog.get_logger(__name__)

ChangeCallback = Callable[[int, Sequence[str]], None]
BACKOFF_SECONDS = (0.1, 5.0)
SILENT_INTERVALS = 3


class PrefixView:
    """All keys under one prefix at one revision. Belongs to one event loop."""

    def __init__(
        self,
        metastore: Metastore,
        prefix: str,
        clock: Clock,
        *,
        relist_interval_s: float = 300.0,
        progress_interval_s: float = 5.0,
    ) -> None:
        self._metastore = metastore
        self._prefix = prefix
        self._clock = clock
        self._relist_interval_ms = round(relist_interval_s * 1000)
        self._progress_interval_s = progress_interval_s
        self._key_values: dict[str, KeyValue] = {}
        self._sorted_keys: list[str] | None = []
        self._revision = 0
        self._newest: KeyValue | None = None  # The last put in the view, even if the key was deleted since.
        self._cluster_id = 0
        self._confirmed_ms = 0
        self._listed_ms = 0
        self._callbacks: list[ChangeCallback] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.changed_revision = 0
        """`revision` at the last change under the prefix; a full read may raise only `revision`."""
        self.lost_events = 0
        """Number of changes that a relist found and the watch did not deliver; nonzero if etcd loses events."""

    @property
    def revision(self) -> int:
        """Revision up to which every change is applied; `0` before `load`."""
        return self._revision

    def age_ms(self) -> int:
        """Return the milliseconds since etcd's last message on the watch or the last full read."""
        return self._clock.monotonic_ms() - self._confirmed_ms

    def get(self, key: str) -> KeyValue | None:
        """Return one key as of `revision`, or `None`."""
        return self._key_values.get(key)

    def items(self, prefix: str) -> list[KeyValue]:
        """Return all keys that start with `prefix`, ascending."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self._key_values)
        first = bisect_left(self._sorted_keys, prefix)
        found = []
        for index in range(first, len(self._sorted_keys)):
            key = self._sorted_keys[index]
            if not key.startswith(prefix):
                break
            found.append(self._key_values[key])
        return found

    def subscribe(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback(revision, changed keys)` after each applied revision; return a function that unsubscribes."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def wait_for(self, revision: int, timeout_seconds: float) -> None:
        """Wait until `revision`, which must be that of a write under this prefix, is applied.

        Raises:
            TimedOutError: If it is not within `timeout_seconds`.
        """
        if self._revision >= revision:
            return
        waiter = (revision, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_seconds):
                await waiter[1]
        except TimeoutError as error:
            raise TimedOutError(
                f"the metadata cache is at revision {self._revision} and did not reach {revision} within "
                f"{timeout_seconds:g} s",
                action="Retry; if it persists, check the connection of this process to etcd.",
            ) from error
        finally:
            self._waiters.remove(waiter)

    async def load(self) -> None:
        """Read the whole prefix. Call it before `run`; it may be repeated.

        Raises:
            MetastoreUnavailableError: If etcd does not respond; call it again.
            MetastoreRolledBackError: See the module.
        """
        self._take_list(await self._metastore.range(self._prefix))

    async def run(self) -> None:
        """Follow the changes until cancelled.

        Raises:
            MetastoreRolledBackError: See the module.
        """
        assert self._revision, "load comes before run"
        failures, overlap = 0, None
        while True:
            try:
                await self._follow(overlap)
            except MetastoreRolledBackError:
                raise
            except CompactedError:
                log.info("view_compacted", prefix=self._prefix, revision=self._revision)
                relist = True
            except TimeoutError:
                log.warning("view_silent", prefix=self._prefix, revision=self._revision)
                relist = True
            except MetastoreUnavailableError as error:
                log.info("view_interrupted", prefix=self._prefix, revision=self._revision, cause=str(error))
                relist = False
            failures = await self._recover(relist, failures)
            overlap = None if relist else self._newest

    async def _recover(self, relist: bool, failures: int) -> int:
        """Read again as far as needed until etcd responds; return the number of consecutive failures."""
        while True:
            first, most = BACKOFF_SECONDS
            await asyncio.sleep(min(most, first * 2**failures) * random.uniform(0.5, 1.0))
            try:
                if relist:
                    await self.load()
                else:
                    relist = not await self._is_continued()
                    if relist:
                        continue
            except MetastoreRolledBackError:
                raise
            except MetastoreUnavailableError:
                failures = min(failures + 1, 10)
            else:
                return 0

    async def _is_continued(self) -> bool:
        """Return whether etcd still has the newest key of the view, which a restored etcd most likely has not (H81).

        The linearizable read also checks the revision: a watch from a revision that a restored etcd has not reached
        would receive nothing, and one on an etcd restored with a raised revision would continue unnoticed.
        """
        lasting = [key_value for key_value in self._key_values.values() if not key_value.lease_id]
        newest = max(lasting, key=lambda key_value: key_value.mod_revision, default=None)
        read = await self._metastore.get(self._prefix if newest is None else newest.key)
        self._check(read.cluster_id, read.revision)
        if newest is None:
            return True
        if read.key_value is not None:
            self._check_key(read.key_value)
        return read.key_value is not None

    async def _follow(self, overlap: KeyValue | None) -> None:
        """Watch from after the last applied revision until the stream breaks, which raises.

        After an earlier break, watch from `overlap`, which must be delivered unchanged: an etcd restored to an older
        state has a different key or none there, however far its revision has risen since (H81).
        """
        start = self._revision + 1 if overlap is None else overlap.mod_revision
        stream = self._metastore.watch(self._prefix, start, progress_interval_s=self._progress_interval_s)
        try:
            while True:
                async with asyncio.timeout(self._progress_interval_s * SILENT_INTERVALS):
                    item = await anext(stream)
                if overlap is not None and item.events:
                    if PutEvent(overlap) not in item.events:
                        raise MetastoreRolledBackError(
                            f"etcd has not the write of {overlap.key} at revision {overlap.mod_revision} that has been "
                            "seen: it was restored or replaced"
                        )
                    overlap = None
                self._take_item(item)
                if self._clock.monotonic_ms() - self._listed_ms >= self._relist_interval_ms:
                    await self.load()
        finally:
            await _close(stream)

    def _take_item(self, item: WatchEvents) -> None:
        self._check_cluster(item.cluster_id)
        self._confirmed_ms = self._clock.monotonic_ms()
        if not item.events or item.revision <= self._revision:
            return
        changed = []
        for event in item.events:
            if isinstance(event, PutEvent):
                self._put(event.key_value)
                changed.append(event.key_value.key)
            else:
                self._remove(event.key)
                changed.append(event.key)
        self._advance(item.revision, changed)

    def _take_list(self, listed: RangeResult) -> None:
        """Replace all keys by those at `listed.revision`, and report the difference as one change."""
        self._check(listed.cluster_id, listed.revision)
        for key_value in listed.key_values:
            self._check_key(key_value)
        self._cluster_id = listed.cluster_id
        fresh = {key_value.key: key_value for key_value in listed.key_values}
        changed = [key for key in self._key_values if key not in fresh]
        for key, key_value in fresh.items():
            if self._key_values.get(key) != key_value:
                changed.append(key)
                if key_value.mod_revision <= self._revision:
                    self.lost_events += 1
                    log.error("view_lost_event", key=key, mod_revision=key_value.mod_revision)
        for key in changed:
            if key in fresh:
                self._put(fresh[key])
            else:
                self._remove(key)
        self._confirmed_ms = self._listed_ms = self._clock.monotonic_ms()
        self._advance(listed.revision, changed)

    def _put(self, key_value: KeyValue) -> None:
        if key_value.key not in self._key_values:
            self._sorted_keys = None
        self._key_values[key_value.key] = key_value
        if self._newest is None or key_value.mod_revision >= self._newest.mod_revision:
            self._newest = key_value

    def _remove(self, key: str) -> None:
        if self._key_values.pop(key, None) is not None:
            self._sorted_keys = None

    def _advance(self, revision: int, changed: Sequence[str]) -> None:
        self._revision = max(self._revision, revision)
        if changed:
            self.changed_revision = self._revision
            for callback in tuple(self._callbacks):
                callback(self._revision, changed)
        for wanted, future in self._waiters:
            if wanted <= self._revision and not future.done():
                future.set_result(None)

    def _check(self, cluster_id: int, revision: int) -> None:
        self._check_cluster(cluster_id)
        if revision < self._revision:
            raise MetastoreRolledBackError(
                f"etcd answers with revision {revision}, but {self._revision} was seen before: "
                "its data was restored or replaced"
            )

    def _check_key(self, found: KeyValue) -> None:
        """Raise if a key's mod_revision went back, which also detects a restore with a raised etcd revision."""
        known = self._key_values.get(found.key)
        if known is not None and found.mod_revision < known.mod_revision:
            raise MetastoreRolledBackError(
                f"etcd has {found.key} at revision {found.mod_revision}, but {known.mod_revision} was seen before: "
                "its data was restored or replaced"
            )

    def _check_cluster(self, cluster_id: int) -> None:
        if self._cluster_id and cluster_id != self._cluster_id:
            raise MetastoreRolledBackError(f"etcd cluster {cluster_id:x} answers where {self._cluster_id:x} did before")


async def _close(stream: AsyncIterator[WatchEvents]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
