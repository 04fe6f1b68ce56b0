"""The coordinator's settings: checked whole, named when wrong; and which etcd is fit for production."""

from __future__ import annotations

import pytest
from headrace_coordinator.settings import ENVIRON_PREFIX, CoordinatorSettings
from headrace_server.settings import SettingsError, load_settings


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
        (["coordinator_id=a", "etcd_user=headrace"], "etcd_user and etcd_password_file must be set together"),
        (["coordinator_id=a", "etcd_password_file=p"], "etcd_user and etcd_password_file must be set together"),
        (["coordinator_id=a", "orphan_grace=1"], "did you mean orphan_grace_ms"),
    ],
)
def test_bad_settings_are_named(overrides, words):
    """Unknown, missing, malformed, out of range, contradicting: each by name."""
    with pytest.raises(SettingsError, match=words):
        load(*overrides)
