"""Records that have a newer one of their key: as a set would find them, whatever the hashes are."""

from __future__ import annotations

import random
import tracemalloc
from itertools import product

import numpy as np
import pytest
from headrace.log import newer_keys
from headrace.log.newer_keys import Keys, NewerKeys
from headrace.wire.decoded import BinaryColumn
from headrace.wire.encoding import join_column


def column(keys: list[bytes]) -> BinaryColumn:
    offsets, data, _ = join_column("key", keys)
    return BinaryColumn(offsets, memoryview(data), None)


def drawn(chance: random.Random, count: int) -> list[bytes]:
    """Return keys that are often the same, prefixes of each other, or differ in trailing zeros alone."""
    return [bytes(chance.choices(b"\0\1ab", k=chance.choice((0, 1, 2, 7, 8, 9, 16, 40)))) for _ in range(count)]


def replaced(chunks: list[list[bytes]], taken: int, seed: int, memory_bytes: int) -> tuple[list[list[bool]], int]:
    """Return which records of chunks, from the newest to the oldest, are replaced, and the turns that it took."""
    found, turns, next_hash = [np.zeros(len(chunk), np.bool_) for chunk in chunks], 0, 0
    while next_hash is not None:
        newer = NewerKeys(seed, memory_bytes, next_hash)
        for number, chunk in enumerate(chunks):
            at = len(chunk) // 3
            found[number] |= newer.replaced([column(chunk[:at]), column(chunk[at:])], takes=number < taken)
        turns, next_hash = turns + 1, newer.next_hash
    return [each.tolist() for each in found], turns


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mix", [newer_keys._MIX, np.uint64(0), np.uint64(1 << 63)])
@pytest.mark.parametrize("memory_bytes", [1, 2_000, 1 << 20])
def test_replaced_records(monkeypatch: pytest.MonkeyPatch, seed: int, mix: np.uint64, memory_bytes: int) -> None:
    """Exactly the records are found that have a newer one of their key among those taken, also where many or all keys
    have one hash, and where not all keys fit into memory.
    """
    monkeypatch.setattr(newer_keys, "_MIX", mix)
    monkeypatch.setattr(newer_keys, "_GATHERED_BYTES", 64)
    monkeypatch.setattr(newer_keys, "_COPIED_BYTES", 3)
    chance = random.Random(seed)
    chunks, taken = [drawn(chance, chance.choice((0, 1, 50, 100))) for _ in range(6)], chance.randrange(7)
    seen, expected = set[bytes](), []
    for number, chunk in enumerate(chunks):
        later = [key in chunk[row + 1 :] if number < taken else False for row, key in enumerate(chunk)]
        expected.append([key in seen or is_later for key, is_later in zip(chunk, later, strict=True)])
        seen |= set(chunk) if number < taken else set()
    found, turns = replaced(chunks, taken, seed, memory_bytes)
    assert found == expected
    assert memory_bytes > 10_000 or mix != newer_keys._MIX or turns <= 2 * max(1, len(seen))


def test_another_key_with_the_same_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is not found by its hash alone."""
    monkeypatch.setattr(newer_keys, "_MIX", np.uint64(0))
    chunks = [[b"a", b"b", b"a"], [b"c", b"a", b""], [b"b", b"aa"]]
    assert replaced(chunks, 2, 1, 1000)[0] == [[True, False, False], [False, True, False], [True, False]]


def test_turns_grow_with_the_keys_and_not_with_the_records() -> None:
    """However long the log is, its records are read once for each part of the keys that fits into memory."""
    keys = [b"key-%04d" % number for number in range(1_000)]
    turns = {count: replaced([keys] * count, count, 7, 20_000)[1] for count in (1, 5, 25)}
    assert turns[1] == turns[5] == turns[25] <= 8


def test_no_keys() -> None:
    """Nothing is found in nothing."""
    assert replaced([[], [b"a"]], 1, 1, 1000)[0] == [[], [False]]
    assert NewerKeys(1, 1000).replaced([], takes=True).tolist() == []


@pytest.mark.parametrize("memory_bytes", [1_000, 1 << 20])
def test_many_keys_with_one_hash(monkeypatch: pytest.MonkeyPatch, memory_bytes: int) -> None:
    """They are compared in a few rounds, and not one by one: what a producer chooses does not hold up compaction."""
    monkeypatch.setattr(newer_keys, "_MIX", np.uint64(0))
    rounds, equal = 0, Keys.equal

    def counted(mine: Keys, others: Keys) -> newer_keys._Bools:
        nonlocal rounds
        rounds += 1
        return equal(mine, others)

    monkeypatch.setattr(Keys, "equal", counted)
    keys = [b"%d" % number for number in range(2_000)]
    found, turns = replaced([[*keys, *keys], [b"old", *keys[:1_000]], keys], 2, 1, memory_bytes)
    assert found == [[True] * 2_000 + [False] * 2_000, [False] + [True] * 1_000, [True] * 2_000]
    assert turns == 1, "less than one hash cannot be taken at a time"
    assert rounds <= 50


def test_no_keys_have_one_hash_for_every_seed() -> None:
    """Bits that cancel out in two words, as those of a hash that multiplies and shifts, do not do so here."""
    pairs = [bytes(16), np.array([1 << 63, 1 << 63 | 1 << 34], np.uint64).tobytes()]
    keys = [b"".join(chosen) for chosen in product(pairs, repeat=11)]
    for seed in range(5):
        assert len(np.unique(Keys.of([column(keys)]).hashes(seed) >> np.uint64(26))) > 2_000


@pytest.mark.parametrize("size", [10, 1_000, 8_000_000])
def test_memory_of_a_copy(size: int) -> None:
    """A copy of keys needs little more than their bytes, however long they are."""
    keys = Keys.of([column([bytes(size)] * (8_000_000 // size))])
    tracemalloc.start()
    try:
        copy = keys.copied()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(copy.data) == 8_000_008
    assert peak <= 16_000_000 + 24 * len(copy.starts)
