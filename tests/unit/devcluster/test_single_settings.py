"""Settings of a cluster in one process: each service gets what it knows, and a mistake is named."""

import pytest
from headrace_devcluster.single.__main__ import read_settings
from headrace_devcluster.single_part import single_settings
from headrace_server.settings import SettingsError


def given(tmp_path, **more):
    settings = single_settings(tmp_path, fixed_ports=True, api_key_file=None)
    return {name: str(value) for name, value in settings.items()} | {"listen": "127.0.0.1:0"} | more


def test_each_service_gets_its_settings(tmp_path):
    """One that both have reaches both; the process has one metastore, and copies are not made."""
    settings = read_settings(given(tmp_path, lease_ttl_ms="5000", max_waiting_fetches="7", max_groups="8"))
    assert settings.broker.lease_ttl_ms == settings.coordinator.lease_ttl_ms == 5_000
    assert (settings.broker.max_waiting_fetches, settings.coordinator.max_groups) == (7, 8)
    assert settings.coordinator.default_replication_factor == 1
    assert settings.metastore_file.parent == tmp_path
    assert settings.broker.native_listen == "127.0.0.1:7171"


def test_a_name_that_neither_has_is_an_error(tmp_path):
    with pytest.raises(SettingsError, match="unknown setting max_waiting_fetchs in the command line; did you mean"):
        read_settings(given(tmp_path, max_waiting_fetchs="7"))


def test_the_metastore_must_be_named():
    with pytest.raises(SettingsError, match="metastore_file is not set"):
        read_settings({"broker_id": "1"})
