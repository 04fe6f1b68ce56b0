"""Settings come from one place each, are checked whole, and every error names the culprit and the way out."""

import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import headrace_broker.__main__
import headrace_coordinator.__main__
import pytest
from headrace.wire.errors import ErrorCode
from headrace_broker.settings import BrokerSettings
from headrace_coordinator.settings import CoordinatorSettings
from headrace_server.lifecycle import ProcessExitCode
from headrace_server.settings import (
    CommaList,
    SettingsError,
    check_advertised_address,
    describe_settings,
    load_settings,
    settings_as_text,
)
from pydantic import Field

MAIN = {BrokerSettings: headrace_broker.__main__, CoordinatorSettings: headrace_coordinator.__main__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSettings:
    broker_id: Annotated[int, Field(ge=0, le=100, description="The broker's id.")]
    data_dir: Annotated[str, Field(description="The directory of the logs.")] = "data"
    etcd_endpoints: Annotated[CommaList, Field(min_length=1, description="Members of etcd.")] = ("127.0.0.1:2379",)
    fence_on_lease_loss: Annotated[bool, Field(description="Stop serving once the lease is in doubt.")] = False
    log_format: Annotated[Literal["console", "json"], Field(description="How logs look.")] = "console"
    lease_ttl_ms: Annotated[int, Field(ge=2_000, description="Time to live of the lease.")] = 10_000
    session_ms: Annotated[int, Field(description="At least the lease.")] = 20_000

    def __post_init__(self):
        if self.session_ms < self.lease_ttl_ms:
            raise ValueError("session_ms is less than lease_ttl_ms")
        if self.fence_on_lease_loss and self.broker_id == 0:
            raise ValueError("ID 0 is never fenced")


def load(tmp_path=None, toml=None, environ=None, overrides=()):
    config_file = None
    if toml is not None:
        config_file = tmp_path / "broker.toml"
        config_file.write_text(toml)
    return load_settings(
        ExampleSettings, config_file=config_file, environ=environ, environ_prefix="HEADRACE_TEST_", overrides=overrides
    )


def test_later_sources_win(tmp_path):
    """Defaults, then the file, then the environment, then the command line."""
    settings = load(
        tmp_path,
        'broker_id = 1\ndata_dir = "file"\nlog_format = "json"\nlease_ttl_ms = 5000',
        {"HEADRACE_TEST_DATA_DIR": "environment", "HEADRACE_TEST_LEASE_TTL_MS": "6000", "OTHER": "x"},
        ["lease_ttl_ms=7000"],
    )
    assert settings == ExampleSettings(broker_id=1, data_dir="environment", log_format="json", lease_ttl_ms=7_000)


def test_text_becomes_the_type():
    """Numbers, booleans and lists are read from the environment's text."""
    settings = load(
        environ={
            "HEADRACE_TEST_BROKER_ID": "3",
            "HEADRACE_TEST_FENCE_ON_LEASE_LOSS": "true",
            "HEADRACE_TEST_ETCD_ENDPOINTS": "a:1, b:2",
        }
    )
    assert (settings.broker_id, settings.fence_on_lease_loss) == (3, True)
    assert settings.etcd_endpoints == ("a:1", "b:2")
    assert type(settings.broker_id) is int


def test_lists_in_a_file(tmp_path):
    """A TOML array is a list, and so is a string with commas."""
    assert load(tmp_path, 'broker_id = 1\netcd_endpoints = ["a:1", "b:2"]').etcd_endpoints == ("a:1", "b:2")
    assert load(tmp_path, 'broker_id = 1\netcd_endpoints = "a:1,b:2"').etcd_endpoints == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"overrides": ["broker_id=1", "lease_ttl=5"]}, ["lease_ttl", "command line", "did you mean lease_ttl_ms?"]),
        ({"environ": {"HEADRACE_TEST_BROKR_ID": "1"}}, ["HEADRACE_TEST_BROKR_ID", "did you mean broker_id?"]),
        ({"toml": "broker_id = 1\nzzz = 2"}, ["zzz", "broker.toml"]),
        ({}, ["broker_id is not set", "HEADRACE_TEST_BROKER_ID"]),
        ({"overrides": {"broker_id": "one"}}, ["broker_id = 'one'", "the command line", "integer"]),
        ({"overrides": {"broker_id": 101}}, ["broker_id = 101", "less than or equal to 100"]),
        ({"overrides": {"broker_id": 1, "log_format": "xml"}}, ["log_format = 'xml'", "'console' or 'json'"]),
        ({"overrides": {"broker_id": 1, "etcd_endpoints": ""}}, ["etcd_endpoints"]),
        ({"overrides": {"broker_id": 1, "session_ms": 9_999}}, ["session_ms is less than lease_ttl_ms"]),
        ({"overrides": {"broker_id": 0, "fence_on_lease_loss": True}}, ["ID 0 is never fenced"]),
        ({"overrides": ["broker_id"]}, ["'broker_id' is not of the form name=value"]),
        ({"toml": "broker_id = "}, ["broker.toml", "is not TOML"]),
        ({"toml": "broker_id = 101", "environ": {"HEADRACE_TEST_LEASE_TTL_MS": "1"}}, ["broker_id", "lease_ttl_ms"]),
    ],
)
def test_bad_settings_name_the_culprit(tmp_path, sources, words):
    """An unknown name, a wrong type, a value out of range, a broken relation: named, with where it was set."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, **sources)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.action
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    """A missing file is named, with the system's reason."""
    with pytest.raises(SettingsError, match=r"missing\.toml: No such file"):
        load_settings(ExampleSettings, config_file=tmp_path / "missing.toml")


def test_the_reference_shows_every_setting():
    """The table has name, type, default, range and documentation of every field."""
    table = describe_settings(ExampleSettings).splitlines()
    assert table[2] == "| `broker_id` | integer | required | ≥ 0, ≤ 100 | The broker's id. |"
    assert table[4] == "| `etcd_endpoints` | list | `127.0.0.1:2379` | length ≥ 1 | Members of etcd. |"
    assert table[5].startswith("| `fence_on_lease_loss` | boolean | `false` |  |")
    assert table[6].startswith("| `log_format` | `console` or `json` | `console` |")
    assert len(table) == 2 + 7


@pytest.mark.parametrize("listen", ["0.0.0.0:7181", "[::]:7181"])
@pytest.mark.parametrize("settings", [BrokerSettings, CoordinatorSettings])
def test_listening_everywhere_takes_an_advertised_address(settings, listen, capsys):
    """Else clients would be told 0.0.0.0; with an address to tell, and on one address of the machine, it is taken."""
    own = {"broker_id": 1, "data_dir": "d"} if settings is BrokerSettings else {"coordinator_id": "a"}
    overrides = [f"{name}={value}" for name, value in {**own, "listen": listen}.items()]
    assert MAIN[settings].start(None, overrides) is ProcessExitCode.BAD_SETTINGS
    assert "Set advertised_address" in capsys.readouterr().err
    check_advertised_address(listen, "log.example.org:7181")
    check_advertised_address("127.0.0.1:7181", "")


PUBLISHED = [(BrokerSettings, field.name) for field in fields(BrokerSettings) if "advertised" in field.name]
PUBLISHED.append((CoordinatorSettings, "advertised_address"))


@pytest.mark.parametrize(
    "address", ["log-1", "log-1:", ":7181", "log-1:0", "log-1:70000", "fe80::1:7181", "http://log-1:1"]
)
@pytest.mark.parametrize(("settings", "name"), PUBLISHED)
def test_an_address_that_others_cannot_use_is_refused_by_name(settings, name, address):
    """It would be published, and each client would fail to reach this process, as if that were away."""
    own = {"broker_id": 1, "data_dir": "d"} if settings is BrokerSettings else {"coordinator_id": "a"}
    with pytest.raises(SettingsError, match=rf"{name} = {re.escape(repr(address))} .*: .*host:port"):
        load_settings(settings, overrides={**own, name: address})
    for everywhere in ("0.0.0.0:7181", "[::]:7181"):
        with pytest.raises(SettingsError, match="no client can connect to"):
            load_settings(settings, overrides={**own, name: everywhere})
    for good in ("log-1:7181", "10.0.0.1:1", "[fe80::1]:7181", ""):
        load_settings(settings, overrides={**own, name: good})


@pytest.mark.parametrize("settings", [BrokerSettings, CoordinatorSettings])
def test_commands_that_do_not_listen_need_no_advertised_address(settings):
    """In a pod `run` alone has the address, from a file that its container reads."""
    own = {"broker_id": 1, "data_dir": "d"} if settings is BrokerSettings else {"coordinator_id": "a"}
    load_settings(settings, overrides={**own, "listen": "0.0.0.0:7181"})


def test_settings_are_shown_without_secrets():
    """As text, each by its name; a password in a URL is left out, and other secrets are in files."""
    settings = BrokerSettings(
        broker_id=1, data_dir="d", etcd_endpoints=("a:1", "b:2"), otlp_endpoint="https://ann:s3cret@collector:4318"
    )
    shown = settings_as_text(settings)
    assert (shown["broker_id"], shown["etcd_endpoints"]) == ("1", "a:1,b:2")
    assert shown["otlp_endpoint"] == "https://[left out]@collector:4318"
    for cls in MAIN:
        secret = re.compile("password|secret|token|api_key|private")
        names = [field.name for field in fields(cls) if secret.search(field.name)]
        assert [name for name in names if not re.search("_files?$|_ms$|_count$|_bytes$", name)] == []
