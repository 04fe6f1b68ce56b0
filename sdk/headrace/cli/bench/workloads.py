"""Synthetic requests in columns: due time, key and value length of each. Pure.

`PaperWorkload` is the experiment of the paper on Kafka (NetDB 2011, section 5); `ModelWorkload` draws the requests of a
`WorkloadModel`. All steps are vectorized, so one core generates millions of requests/s.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from headrace.cli.bench.distributions import DailyPattern, Floats, Ints, Popularity
from headrace.cli.bench.models import WorkloadModel


class Requests(NamedTuple):
    """Consecutive requests."""

    due_s: Floats
    """float64[n], ascending: seconds after the first request."""
    keys: Ints | None
    """int64[n]: ranks of keys, `0` is the most popular; `None` if requests have no keys."""
    value_bytes: Ints
    """int64[n]: lengths of the values."""


class Workload(Protocol):
    """Generator of requests; each call continues after the one before."""

    @property
    def usual_value_bytes(self) -> float:
        """Typical value size in bytes, from which the number of requests per block is derived."""

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""


@dataclass(slots=True)
class PaperWorkload:
    """Values of one size, without keys, evenly spaced."""

    value_bytes: int
    rate: float
    """Requests per second; infinity means that all are due at once."""
    made: int = 0

    @property
    def usual_value_bytes(self) -> float:
        """Length of every value."""
        return self.value_bytes

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""
        numbers = np.arange(self.made, self.made + count, dtype=np.float64)
        self.made += count
        return Requests(numbers / self.rate, None, np.full(count, self.value_bytes, np.int64))


class ModelWorkload:
    """Requests of a model."""

    def __init__(self, model: WorkloadModel, rate: float | None, seed: int, start_hour: float = 0.0) -> None:
        """Prepare.

        Args:
            model: Distributions of the requests.
            rate: Average requests per second; `None` means the model's.
            seed: Seed of the generator; the same seed generates the same requests.
            start_hour: Hour of the day (UTC) at which the load begins, for a model with a daily pattern.
        """
        self._model = model
        self._chance = np.random.default_rng(seed)
        self._popularity = Popularity(model.keys, model.zipf_exponent)
        self._gap_scale = 1.0 if rate is None else model.requests_per_second / rate
        self._pattern = DailyPattern(model.hourly_load, start_hour) if model.hourly_load else None
        self._now_s = 0.0
        self._next_new = model.keys
        self.usual_value_bytes = max(1.0, model.value_bytes.mean())

    def requests(self, count: int) -> Requests:
        """Return the next `count` requests."""
        chance, model = self._chance, self._model
        due = np.cumsum(model.gap_us.values(chance.random(count)))
        due *= self._gap_scale / 1e6
        due += self._now_s
        self._now_s = float(due[-1]) if count else self._now_s
        keys = self._popularity.ranks(chance.random(count))
        if model.new_key_rate:
            new = np.flatnonzero(chance.random(count) < model.new_key_rate)
            keys[new] = np.arange(self._next_new, self._next_new + len(new))
            self._next_new += len(new)
        values = model.value_bytes.draw(chance.random(count))
        return Requests(due if self._pattern is None else self._pattern.times_s(due), keys, values)
