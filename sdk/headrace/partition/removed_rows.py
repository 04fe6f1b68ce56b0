"""Rows of a table that have been deleted or have expired, as the causes of later misses. Pure; bounded."""

from __future__ import annotations

from collections import OrderedDict

from headrace.wire.request_trace import KeySampler, RequestOutcome
from headrace.wire.table_keys import split_key

MOST = 20_000
"""Maximum rows that are remembered."""


class RemovedRows:
    """Sampled rows that are gone, by the hash of their key: no key is kept."""

    def __init__(self, sampler: KeySampler, *, is_complete: bool) -> None:
        """`is_complete`: no row has been removed yet, so that a row that is not here was never written."""
        self.sampler = sampler
        self.is_complete = is_complete
        self._outcomes: OrderedDict[int, RequestOutcome] = OrderedDict()

    def note(self, row_start: bytes, outcome: RequestOutcome) -> None:
        """Note that the row with this `row_start` is gone, and what its reads find from now on."""
        parts = split_key(row_start)
        assert parts is not None
        if not self.sampler.samples(parts[0]):
            return
        key_hash = self.sampler.key_hash(parts[0])
        self._outcomes[key_hash] = outcome
        self._outcomes.move_to_end(key_hash)
        if len(self._outcomes) > MOST:
            self._outcomes.popitem(last=False)
            self.is_complete = False

    def outcome_of(self, key: bytes) -> RequestOutcome:
        """Return why a sampled row does not exist."""
        unknown = RequestOutcome.MISS_NEVER_WRITTEN if self.is_complete else RequestOutcome.MISS
        return self._outcomes.get(self.sampler.key_hash(key), unknown)
