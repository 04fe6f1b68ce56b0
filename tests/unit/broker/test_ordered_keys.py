"""The ordered map of a table's keys against a dict."""

import random

import pytest
from headrace.partition import ordered_keys
from headrace.partition.ordered_keys import OrderedKeys


def content(keys, start=b"", end=None):
    return list(keys.items(start, end))


@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_that_of_a_dict(seed, monkeypatch):
    """Lists of a few keys, so that they are divided and removed all the time."""
    monkeypatch.setattr(ordered_keys, "_MOST", 8)
    monkeypatch.setattr(ordered_keys, "_FILLED", 6)
    draw = random.Random(seed)
    expected = {b"%03d" % number: number for number in draw.sample(range(300), 40)}
    keys = OrderedKeys(sorted(expected), [expected[key] for key in sorted(expected)])
    for step in range(1_500):
        key = b"%03d" % draw.randrange(300)
        if draw.random() < (0.6 if step < 700 else 0.3):
            before = max((each for each in expected if each < key), default=b"")
            after = min((each for each in expected if each > key), default=b"")
            assert keys.set(key, step) == (None if key in expected else (before, after))
            expected[key] = step
        else:
            assert keys.remove(key) is (expected.pop(key, None) is not None)
        assert keys.get(key) == expected.get(key, -1)
        assert len(keys) == len(expected)
        assert keys.size_bytes == (3 + ordered_keys.KEY_BYTES) * len(expected)
        start, end = sorted(b"%03d" % draw.randrange(300) for _ in range(2))
        part = [(each, expected[each]) for each in sorted(expected) if start <= each < end]
        assert content(keys, start, end) == part
        most = draw.randrange(1, 12)
        assert keys.first(start, end, most) == part[:most]
    assert content(keys) == sorted(expected.items())


def test_keys_that_ascend_leave_full_lists():
    keys = OrderedKeys()
    for number in range(10_000):
        keys.set(b"%05d" % number, number)
    assert len(keys._keys) <= 10_000 // ordered_keys._FILLED + 1
    assert [number for _, number in keys.items()] == list(range(10_000))


def test_an_empty_map_has_nothing():
    keys = OrderedKeys()
    assert (len(keys), keys.get(b"a"), keys.remove(b"a"), content(keys)) == (0, -1, False, [])
    assert keys.first(b"", b"z", 1) == []
    keys.set(b"a", 1)
    assert keys.remove(b"a")
    assert content(keys) == []
    keys.set(b"b", 2)
    assert content(keys) == [(b"b", 2)]
