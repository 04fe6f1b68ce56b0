"""The first administrator: by a command, by a file, and made anew if all are lost."""

from __future__ import annotations

import stat

import pytest
from headrace.wire.errors import ConflictError, InvalidConfigError, InvalidRequestError
from headrace_coordinator.bootstrap_admin import bootstrap_in
from headrace_coordinator.runtime.first_administrator import MONITOR, ensure_api_key, read_api_key
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.cluster_identity import read_or_create
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.settings import SettingsError

from tests.fakes.identity_parts import identity_parts
from tests.fakes.lossy_metastore import LOST, NEVER, LossyMetastore
from tests.fakes.memory_metastore import MemoryMetastore

SETTINGS = CoordinatorSettings(coordinator_id="a", cluster="c")


@pytest.fixture
def parts():
    return identity_parts(LossyMetastore(MemoryMetastore()))


def key_ids(parts, name="admin"):
    return [api_key.key_id for api_key in parts.view.users[name].api_keys]


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST], [LOST, NEVER]])
async def test_the_first_administrator_is_made_once(parts, faults):
    """With one API key and `admin` on the cluster; a second one only by that, or by `--recover`."""
    parts.metastore.faults = list(faults)
    api_key = await parts.bootstrap()
    assert key_ids(parts) == [api_key.key_id]
    (grant,) = parts.view.all_grants
    assert (grant.principal, grant.role, grant.resource, grant.expires_ms) == ("admin", "admin", "cluster", 0)
    for name in ("admin", "other"):
        with pytest.raises(ConflictError, match="the cluster has an administrator"):
            await parts.bootstrap(name)


async def test_an_administrator_that_cannot_work_is_none(parts):
    """Without a key, or disabled: then the command works; but it takes over no user that exists."""
    await parts.put_user("ada")
    await parts.grant("ada")
    with pytest.raises(ConflictError, match="there is a user ada already"):
        await parts.bootstrap("ada")
    await parts.bootstrap("admin")
    assert parts.writes.has_administrator


async def test_a_lost_administrator_is_made_anew(parts):
    """Enabled, with the new key alone: the old ones, which others may have found, are of no use."""
    await parts.bootstrap()
    await parts.add_key("admin")
    await parts.administrator("other")
    await parts.put_user("admin", disabled=True, groups=["g"])
    api_key = await parts.bootstrap(recover=True)
    assert key_ids(parts) == [api_key.key_id]
    user = parts.view.users["admin"]
    assert (user.disabled, [*user.groups]) == (False, ["g"])


@pytest.mark.parametrize("name", ["", "group:x", "a b", "certificate:x"])
async def test_names_that_no_administrator_can_have(parts, name):
    with pytest.raises((InvalidRequestError, ConflictError)):
        await parts.bootstrap(name)
    assert not parts.view.users


# --- the file of a coordinator ---


@pytest.mark.parametrize("faults", [[], [NEVER], [LOST, LOST]])
async def test_a_coordinator_makes_the_administrator_of_its_file(parts, faults):
    """Once: a restart writes nothing."""
    api_key = parse_api_key(make_api_key())
    parts.metastore.faults = list(faults)
    await ensure_api_key(parts.writes, api_key, parts.deadline)
    await parts.source.load()
    assert key_ids(parts) == [api_key.key_id]
    assert parts.writes.has_administrator
    before = parts.source.revision
    await ensure_api_key(parts.writes, api_key, parts.deadline)
    await parts.source.load()
    assert parts.source.revision == before


async def test_another_key_in_the_file_replaces_the_oldest(parts):
    """The one before stays valid with it, so that clients change over without an outage."""
    keys = [parse_api_key(make_api_key()) for _ in range(3)]
    for api_key in keys:
        parts.clock.advance(1)
        await ensure_api_key(parts.writes, api_key, parts.deadline)
    await parts.source.load()
    assert key_ids(parts) == [keys[1].key_id, keys[2].key_id]


async def test_a_lost_grant_is_made_anew_and_a_disabled_user_stays_so(parts):
    api_key = parse_api_key(make_api_key())
    await ensure_api_key(parts.writes, api_key, parts.deadline)
    await parts.source.load()
    await parts.administrator("other")
    await parts.store.delete_grant("admin", "admin", "cluster", parts.deadline)
    await parts.put_user("admin", disabled=True)
    await ensure_api_key(parts.writes, api_key, parts.deadline)
    await parts.source.load()
    assert [grant.role for grant in parts.view.grants_to("admin")] == ["admin"]
    assert parts.view.users["admin"].disabled


def test_a_file_has_one_api_key(tmp_path):
    """Whatever it has instead is not in the error."""
    path = tmp_path / "key"
    text = make_api_key()
    path.write_text(f"{text}\n")
    assert read_api_key(str(path)) == parse_api_key(text)
    for wrong in ("", "secret-that-is-none", text[:-1] + "!", f"{text} {text}", "hrk_" + "a" * 2_000):
        path.write_text(wrong)
        with pytest.raises(SettingsError, match="has no API key") as failure:
            read_api_key(str(path))
        assert not wrong or wrong not in str(failure.value)
    with pytest.raises(SettingsError, match="cannot read admin_api_key_file"):
        read_api_key(str(tmp_path / "none"))


# --- the command ---


async def test_the_command_prints_the_key_or_writes_it_to_a_file_of_its_own(tmp_path):
    memory, out = MemoryMetastore(), tmp_path / "admin.key"
    with pytest.raises(InvalidConfigError, match="there is no cluster c"):
        await bootstrap_in(memory, SETTINGS, "admin", None, recover=False)
    await read_or_create(memory, "c", "id")
    (line,) = await bootstrap_in(memory, SETTINGS, "admin", out, recover=False)
    assert line == f"the API key of admin is in {out}"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert parse_api_key(out.read_text().strip()) is not None
    with pytest.raises(SettingsError, match="File exists"):
        await bootstrap_in(memory, SETTINGS, "admin", out, recover=True)
    with pytest.raises(ConflictError):
        await bootstrap_in(memory, SETTINGS, "admin", tmp_path / "second", recover=False)
    assert not (tmp_path / "second").exists()
    (text,) = await bootstrap_in(memory, SETTINGS, "admin", None, recover=True)
    async with identity_parts(memory) as parts:
        assert key_ids(parts) == [parse_api_key(text).key_id]


async def test_the_monitor_of_a_file_reads_and_no_more(parts):
    """`monitor` on the cluster, one key; no administrator comes of it, and `bootstrap-admin` still works."""
    api_key = parse_api_key(make_api_key())
    for _ in range(2):
        await ensure_api_key(parts.writes, api_key, parts.deadline, MONITOR)
        await parts.source.load()
    assert key_ids(parts, "monitor") == [api_key.key_id]
    (grant,) = parts.view.all_grants
    assert (grant.principal, grant.role, grant.resource) == ("monitor", "monitor", "cluster")
    assert not parts.writes.has_administrator
    with pytest.raises(SettingsError, match="cannot read monitor_api_key_file"):
        read_api_key("/nowhere", MONITOR.setting)
