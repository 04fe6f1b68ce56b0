"""Keys of the accepted issuers, kept up to date: refreshed every few minutes, and for a token of an unknown key.

The last key set stays in use while an issuer cannot be reached or answers nonsense, so that its users are not locked
out by its outage. An unknown key id leads to one read in `MISS_MS`, whatever key ids strangers invent. A file is read
again when it changes. Belongs to the event loop; `run` is a task of the app.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from headrace.v1 import auth_pb2
from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_server.certificate_files import Stamp, stamps_of
from headrace_server.clock import Clock
from headrace_server.identity.identity_view import IdentityView
from headrace_server.telemetry import LogInterval

from headrace_coordinator.runtime.issuers.key_fetch import IssuerKeysError, KeyFetcher

if TYPE_CHECKING:
    from headrace_coordinator.runtime.issuers.key_sets import Key, KeySet

log = structlog.get_logger(__name__)

REFRESH_MS = 300_000
MISS_MS = 10_000
"""Minimum time between two reads because of tokens of unknown keys, or because the last one failed."""
LOOK_SECONDS = 2.0


class IssuerKeys:
    """Key sets of all issuers in a view."""

    def __init__(self, view: IdentityView, fetcher: KeyFetcher, clock: Clock) -> None:
        self._view = view
        self._fetcher = fetcher
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    async def run(self) -> None:
        """Refresh the keys that are due, until cancelled; nothing is read after that."""
        try:
            while True:
                for name in [name for name in self._entries if name not in self._view.issuers]:
                    self._entries.pop(name).cancel()
                for issuer in tuple(self._view.issuers.values()):
                    entry = self._entry(issuer)
                    if entry.is_due():
                        entry.start()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for entry in self._entries.values():
                entry.cancel()
            self._fetcher.close()

    async def find(self, issuer: auth_pb2.Issuer, algorithm: str, key_id: str | None) -> Key | None:
        """Return the key of a token, or `None` if the issuer has no such key.

        Raises:
            MetastoreUnavailableError: If none of its keys could be read yet; retriable.
        """
        entry = self._entry(issuer)
        if entry.keys is None or entry.has_changed():
            await entry.refresh()
        if entry.keys is None:
            raise MetastoreUnavailableError(
                f"the keys of issuer {issuer.name} could not be read: {entry.failure}",
                outcome=Outcome.NOT_APPLIED,
                action="Try again; if it persists, an administrator must check keys_url of the issuer.",
                retry_after_ms=1_000,
            )
        found = entry.keys.find(algorithm, key_id)
        if found is None:
            await entry.refresh()
            found = entry.keys.find(algorithm, key_id)
        return found

    def _entry(self, issuer: auth_pb2.Issuer) -> _Entry:
        """Return the keys of an issuer, none yet if what is stored of it has changed."""
        entry = self._entries.get(issuer.name)
        if entry is None or entry.issuer != issuer:
            if entry is not None:
                entry.cancel()
            entry = self._entries[issuer.name] = _Entry(issuer, self._fetcher, self._clock)
        return entry


class _Entry:
    """Keys of one issuer."""

    def __init__(self, issuer: auth_pb2.Issuer, fetcher: KeyFetcher, clock: Clock) -> None:
        self.issuer = issuer
        self.keys: KeySet | None = None
        self.failure = "they were not read yet"
        self._fetcher = fetcher
        self._clock = clock
        self._failures = LogInterval(clock.monotonic_ms)
        self._tried_ms: int | None = None
        self._refreshed_ms = 0
        self._stamp: Stamp | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def _is_file(self) -> bool:
        return self.issuer.keys_url.startswith("/")

    def is_due(self) -> bool:
        """Return whether it is time to read the keys, although no token needs them now."""
        if self.keys is None or self.failure:
            return self._may_try()
        return self.has_changed() or self._clock.monotonic_ms() - self._refreshed_ms >= REFRESH_MS

    def has_changed(self) -> bool:
        """Return whether the keys are in a file that was replaced or written."""
        return self._is_file and stamps_of([self.issuer.keys_url])[0] != self._stamp

    def start(self) -> asyncio.Task[None]:
        """Begin to read the keys, unless they are being read; return the task."""
        if self._reading is None or self._reading.done():
            self._tried_ms = self._clock.monotonic_ms()
            self._reading = asyncio.create_task(self._read(), name=f"keys of issuer {self.issuer.name}")
        return self._reading

    async def refresh(self) -> None:
        """Read the keys, or wait while they are being read; nothing happens shortly after the last time."""
        reading = self._reading is not None and not self._reading.done()
        if reading or self._may_try() or self.has_changed():
            await asyncio.wait([self.start()])

    def cancel(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    def _may_try(self) -> bool:
        return self._tried_ms is None or self._clock.monotonic_ms() - self._tried_ms >= MISS_MS

    async def _read(self) -> None:
        stamp = stamps_of([self.issuer.keys_url])[0] if self._is_file else None
        try:
            keys = await asyncio.to_thread(_parse, await self._fetcher.read(self.issuer))
        except IssuerKeysError as error:
            self.failure = str(error)
            if self._failures.is_due():
                log.warning(
                    "issuer_keys_not_read",
                    issuer=self.issuer.name,
                    cause=self.failure,
                    for_seconds=self._failures.for_seconds,
                    has_keys=self.keys is not None,
                )
            return
        finally:
            self._stamp = stamp
        self._failures.end()
        self.failure = ""
        self._refreshed_ms = self._clock.monotonic_ms()
        if self.keys is None or self.keys.keys.keys() != keys.keys.keys():
            log.info(
                "issuer_keys_read",
                issuer=self.issuer.name,
                key_ids=[key_id for key_id, _ in keys.keys],
                ignored=keys.ignored,
            )
        self.keys = keys


def _parse(content: bytes) -> KeySet:
    """Parse a key set, in a thread, and import the libraries for it: coordinators without issuers need none."""
    from headrace_coordinator.runtime.issuers.key_sets import read_key_set

    return read_key_set(content)
