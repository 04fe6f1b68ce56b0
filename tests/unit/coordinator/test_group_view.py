"""Who waits for a group's changes is woken by those that concern him."""

from __future__ import annotations

import asyncio

import pytest
from headrace_coordinator.runtime.group_view import GroupView
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace

from tests.fakes.written_keys import WrittenKeys

KEYS = Keyspace("c", 1)
ONE, TWO = b"1" * 16, b"2" * 16


@pytest.fixture
def source() -> WrittenKeys:
    return WrittenKeys()


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

    source.write({KEYS.group_assignment("g", ONE): b""})
    assert await woken() == (True, True)
    source.write({KEYS.group_assignment("g", TWO): b"", KEYS.group("g"): b""})
    assert await woken() == (False, True)
    source.write({KEYS.group_assignment("g", TWO): b"", KEYS.group_assignment("g", ONE): b""})
    assert await woken() == (True, True)
    source.write({KEYS.group_member("g", ONE): b""})
    assert await woken() == (False, True)
    source.write({KEYS.group_offset("g", b"t" * 16, 0): metadata_pb2.CommittedOffset(offset=1).SerializeToString()})
    assert await woken() == (False, False)
    source.write({KEYS.group_assignment("h", ONE): b""})
    assert await woken() == (False, False)
    source.write({KEYS.group_assignment("g", ONE): None})
    assert await woken() == (True, True)
    over["one"] = True
    source.write({KEYS.group_assignment("g", ONE): b""})
    assert await woken() == (True, True)
    assert await ones
    source.write({KEYS.group_assignment("g", ONE): b""})
    assert await woken() == (False, True)
    over["any"] = True
    source.write({KEYS.group("g"): b""})
    assert await anybodys
    assert not await view.wait_until("g", lambda: False, asyncio.get_running_loop().time())
