"""The coordinator's settings: checked whole, named when wrong; and which etcd is fit for production."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from headrace.wire.errors import InvalidConfigError
from headrace_coordinator.app import _reach, check_etcd, is_production_etcd
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings
from headrace_server.settings import SettingsError, load_settings

from tests.fakes.memory_metastore import MemoryMetastore


def load(*overrides, environ=None):
    return load_settings(
        CoordinatorSettings, environ=environ or {}, environ_prefix=ENVIRON_PREFIX, overrides=list(overrides)
    )


def test_the_environment_and_the_command_line_set_them():
    """The command line wins; lists are split at commas."""
    environ = {"HEADRACE_COORDINATOR_COORDINATOR_ID": "a", "HEADRACE_COORDINATOR_ETCD_ENDPOINTS": "x:1, y:2"}
    settings = load("coordinator_id=b", environ=environ)
    assert (settings.coordinator_id, settings.etcd_endpoints) == ("b", ("x:1", "y:2"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "coordinator_id is not set"),
        (["coordinator_id=a/b"], "a/b"),
        (["coordinator_id="], "coordinator_id"),
        (["coordinator_id=a", "lease_ttl_ms=soon"], "lease_ttl_ms"),
        (["coordinator_id=a", "lease_ttl_ms=1"], "lease_ttl_ms"),
        (["coordinator_id=a", "default_replication_factor=10"], "default_replication_factor"),
        (["coordinator_id=a", "default_partitions=20", "max_partitions_per_topic=10"], "default_partitions"),
        (["coordinator_id=a", "orphan_grace=1"], "did you mean orphan_grace_ms"),
    ],
)
def test_bad_settings_are_named(overrides, words):
    """Unknown, missing, malformed, out of range, contradicting: each by name."""
    with pytest.raises(SettingsError, match=words):
        load(*overrides)


@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("3.5.1", False),
        ("3.5.27", False),
        ("3.5.28", True),
        ("3.6.8", False),
        ("3.6.9", True),
        ("3.7.0", True),
        ("4.0.0", True),
        ("3.4.40", False),
        ("unknown", False),
    ],
)
def test_which_etcd_is_fit_for_production(version, fit):
    """At least 3.5.28 or 3.6.9 (PROTOCOL, decisions taken)."""
    assert is_production_etcd(version) is fit


@pytest.mark.parametrize("version", ["3.4.40", "2.3.8", "3.4.0-rc.1"])
def test_an_etcd_that_is_too_old_is_refused(version):
    """Before anything is served, in one sentence that says what to do; a newer or unknown one is taken."""
    with pytest.raises(InvalidConfigError, match=f"release {version}, and headrace needs 3.5 or later. Upgrade etcd"):
        check_etcd(version)
    for taken in ("3.5.0", "3.6.9", "4.0.0", "unknown"):
        check_etcd(taken)


def test_a_coordinator_does_not_start_on_an_etcd_that_is_too_old():
    """Its first look at etcd ends it; waiting would mend nothing."""

    class Old(MemoryMetastore):
        async def status(self):
            return replace(await super().status(), version="3.4.27")

    settings = load("coordinator_id=a")
    with pytest.raises(InvalidConfigError, match=r"3\.4\.27"):
        asyncio.run(_reach(Old(), settings))
