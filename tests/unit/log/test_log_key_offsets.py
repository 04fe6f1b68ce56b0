"""Newest offsets of keys: as a dict would have them, whatever the hashes are."""

from __future__ import annotations

import random

import numpy as np
import pytest
from headrace.log import key_offsets
from headrace.log.key_offsets import KeyOffsets, Keys
from headrace.wire.decoded import BinaryColumn
from headrace.wire.encoding import join_column


def column(keys: list[bytes]) -> BinaryColumn:
    offsets, data, _ = join_column("key", keys)
    return BinaryColumn(offsets, memoryview(data), None)


def drawn(chance: random.Random, count: int) -> list[bytes]:
    """Return keys that are often the same, prefixes of each other, or differ in trailing zeros alone."""
    return [bytes(chance.choices(b"\0\1ab", k=chance.choice((0, 1, 2, 7, 8, 9, 16, 40)))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mix", [key_offsets._MIX, np.uint64(0), np.uint64(1 << 63)])
def test_newest_offsets(monkeypatch: pytest.MonkeyPatch, seed: int, mix: np.uint64) -> None:
    """The newest offset of each key is found, and what it replaces, also where many or all keys have one hash."""
    monkeypatch.setattr(key_offsets, "_MIX", mix)
    monkeypatch.setattr(key_offsets, "_GATHERED_BYTES", 64)
    chance = random.Random(seed)
    taken, looked_up = drawn(chance, 200), drawn(chance, 100)
    offsets = sorted(chance.sample(range(10**12), len(taken)))
    at = chance.randrange(len(taken))
    found = KeyOffsets([column(taken[:at]), column(taken[at:])], np.array(offsets, np.int64), seed)
    expected = dict(zip(taken, offsets, strict=True))
    assert found.newest(Keys.of([column(looked_up)])).tolist() == [expected.get(key, -1) for key in looked_up]
    assert found.newest(Keys.of([column(taken)])).tolist() == [expected[key] for key in taken]
    assert found.replaced.tolist() == [offset < expected[key] for key, offset in zip(taken, offsets, strict=True)]


def test_another_key_with_the_same_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is not found by its hash alone."""
    monkeypatch.setattr(key_offsets, "_MIX", np.uint64(0))
    found = KeyOffsets([column([b"a", b"a"])], np.array([3, 4]), 1)
    assert found.newest(Keys.of([column([b"b", b"a", b"", b"aa"])])).tolist() == [-1, 4, -1, -1]


def test_no_keys() -> None:
    """Nothing is found in nothing."""
    found = KeyOffsets([], np.zeros(0, np.int64), 1)
    assert found.newest(Keys.of([column([b"a"])])).tolist() == [-1]
    assert KeyOffsets([column([b"a"])], np.array([3]), 1).newest(Keys.of([])).tolist() == []
