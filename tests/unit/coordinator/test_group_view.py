"""Who waits for a group's changes is woken by those that concern him."""

from __future__ import annotations

import asyncio

import pytest
from headrace_coordinator.runtime.group_view import GroupView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import KeyValue

KEYS = Keyspace("c", 1)
ONE, TWO = b"1" * 16, b"2" * 16


class Source:
    """Keys in a dictionary; `put` changes some at one revision."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[str, KeyValue] = {}

    def age_ms(self) -> int:
        return 0

    def get(self, key: str) -> KeyValue | None:
        return self.keys.get(key)

    def items(self, prefix: str) -> list[KeyValue]:
        return [value for key, value in sorted(self.keys.items()) if key.startswith(prefix)]

    def subscribe(self, callback):
        self.callback = callback
        return lambda: None

    def put(self, *keys: str, value: bytes = b"") -> None:
        self.revision += 1
        for key in keys:
            self.keys[key] = KeyValue(key, value, self.revision, self.revision, 1, 0)
        self.callback(self.revision, keys)

    def delete(self, key: str) -> None:
        self.revision += 1
        del self.keys[key]
        self.callback(self.revision, [key])


@pytest.fixture
def source() -> Source:
    return Source()


def test_a_member_is_woken_by_its_own_assignment_and_others_by_anything_but_offsets(source):
    view = GroupView(KEYS, source)
    ones, anybodys = asyncio.Event(), asyncio.Event()
    end = view.watch("g", ones, ONE)
    view.watch("g", anybodys)

    def woken() -> tuple[bool, bool]:
        found = ones.is_set(), anybodys.is_set()
        ones.clear()
        anybodys.clear()
        return found

    source.put(KEYS.group_assignment("g", ONE))
    assert woken() == (True, True)
    source.put(KEYS.group_assignment("g", TWO), KEYS.group("g"))
    assert woken() == (False, True)
    source.put(KEYS.group_assignment("g", TWO), KEYS.group_assignment("g", ONE))
    assert woken() == (True, True)
    source.put(KEYS.group_member("g", ONE))
    assert woken() == (False, True)
    source.put(KEYS.group_offset("g", b"t" * 16, 0), value=metadata_pb2.CommittedOffset(offset=1).SerializeToString())
    assert woken() == (False, False)
    source.put(KEYS.group_assignment("h", ONE))
    assert woken() == (False, False)
    source.delete(KEYS.group_assignment("g", ONE))
    assert woken() == (True, True)
    end()
    source.put(KEYS.group_assignment("g", ONE))
    assert woken() == (False, True)
