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


async def test_a_member_is_woken_by_its_own_assignment_and_others_by_anything_but_offsets(source):
    view = GroupView(KEYS, source)
    was_woken = {"one": False, "any": False}
    over = {"one": False, "any": False}

    def shows(name: str) -> bool:
        was_woken[name] = True
        return over[name]

    ones = asyncio.create_task(view.wait_until("g", lambda: shows("one"), None, ONE))
    anybodys = asyncio.create_task(view.wait_until("g", lambda: shows("any"), None))

    async def woken() -> tuple[bool, bool]:
        for _ in range(3):
            await asyncio.sleep(0)
        found = was_woken["one"], was_woken["any"]
        was_woken.update(one=False, any=False)
        return found

    assert await woken() == (True, True)

    source.put(KEYS.group_assignment("g", ONE))
    assert await woken() == (True, True)
    source.put(KEYS.group_assignment("g", TWO), KEYS.group("g"))
    assert await woken() == (False, True)
    source.put(KEYS.group_assignment("g", TWO), KEYS.group_assignment("g", ONE))
    assert await woken() == (True, True)
    source.put(KEYS.group_member("g", ONE))
    assert await woken() == (False, True)
    source.put(KEYS.group_offset("g", b"t" * 16, 0), value=metadata_pb2.CommittedOffset(offset=1).SerializeToString())
    assert await woken() == (False, False)
    source.put(KEYS.group_assignment("h", ONE))
    assert await woken() == (False, False)
    source.delete(KEYS.group_assignment("g", ONE))
    assert await woken() == (True, True)
    over["one"] = True
    source.put(KEYS.group_assignment("g", ONE))
    assert await woken() == (True, True)
    assert await ones
    source.put(KEYS.group_assignment("g", ONE))
    assert await woken() == (False, True)
    over["any"] = True
    source.put(KEYS.group("g"))
    assert await anybodys
    assert not await view.wait_until("g", lambda: False, asyncio.get_running_loop().time())
