"""Histograms: every number is in the bin that holds it, and quantiles and sums follow from the bins."""

import numpy as np
import pytest
from spark_jobs.trace_analysis.histogram import (
    BINS,
    EDGES,
    EXACT,
    GROUPS,
    MAX_VALUE,
    MIDDLES,
    bins_of,
    count,
    count_by_group,
    mean,
    quantiles,
)


def test_a_bin_holds_its_numbers() -> None:
    """Below 1,024 each has its own; above bins are at most 0.2 % wide; the largest are in the last."""
    numbers = np.concatenate([np.arange(5_000), 2 ** np.arange(10, 44), 2 ** np.arange(11, 45) - 1, [2**50]])
    bins = bins_of(numbers)
    bounded = np.minimum(numbers, MAX_VALUE)
    assert np.all((bounded >= EDGES[bins]) & (bounded < EDGES[bins + 1]))
    assert bins_of(np.arange(EXACT)).tolist() == list(range(EXACT))
    assert (np.diff(EDGES)[EXACT:] / EDGES[EXACT:-1]).max() <= 1 / 512
    assert int(bins.max()) == BINS - 1
    assert np.all(np.searchsorted(EDGES, MIDDLES, side="right") - 1 == np.arange(BINS))


def test_quantiles_and_means_are_those_of_the_numbers() -> None:
    """Exact for small numbers, to 0.2 % for others; without numbers there are none."""
    numbers = np.random.default_rng(1).lognormal(8, 2, 100_000).astype(np.int64)
    counts = count(numbers)
    assert counts.sum() == 100_000
    for chance in (0.1, 0.5, 0.99):
        assert quantiles(counts, chance) == pytest.approx(
            np.quantile(numbers, chance, method="inverted_cdf"), rel=0.002
        )
    assert mean(counts) == pytest.approx(numbers.mean(), rel=0.001)
    assert np.isnan(quantiles(count(np.empty(0, np.int64)), 0.5))
    assert np.isnan(mean(count(np.empty(0, np.int64))))


def test_groups_are_counted_apart() -> None:
    """Each number in the row of its group."""
    numbers, groups = np.array([5, 5, 9, 70_000]), np.array([0, 3, 3, GROUPS - 1])
    counts = count_by_group(numbers, groups)
    assert counts.shape == (GROUPS, BINS)
    assert (counts[0, 5], counts[3, 5], counts[3, 9], counts.sum()) == (1, 1, 1, 4)
    assert counts[GROUPS - 1, bins_of(np.array([70_000]))[0]] == 1
