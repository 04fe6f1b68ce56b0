"""Credentials in the settings of a client: which are taken, where they may be sent, that errors do not show them."""

import pickle

import headrace
import headrace.aio
import pytest
from headrace.client.base.config import AdminConfig, ProducerConfig, build, describe
from headrace.client.base.credentials import (
    MAX_CREDENTIAL_BYTES,
    credential_of,
    describe_credential,
    provided_token,
    read_api_key,
    read_token,
    refuse_plaintext,
)
from headrace.client.base.errors import ConfigError
from headrace.client.fetch.dead_letters import producer_settings
from headrace.client.interceptors.audit import publisher_settings
from headrace.wire.addresses import is_loopback

from tests.fakes.identity import API_KEY, JWT

SECRET = "b" * 43


def admin(**settings):
    return build(AdminConfig, {"bootstrap_servers": "localhost:7170", **settings})


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "api-key"
    path.write_text(API_KEY + "\n")
    return str(path)


def test_at_most_one_credential_is_set(key_file):
    """Two are an error that names both settings, whatever they are."""
    for pair in (
        {"api_key": API_KEY, "api_key_file": key_file},
        {"api_key_file": key_file, "token_file": key_file},
        {"token_file": key_file, "token_provider": lambda: JWT},
    ):
        with pytest.raises(ConfigError, match=" and ".join(pair)):
            admin(**pair)
    assert credential_of(admin()) == ""
    assert describe_credential(admin(api_key_file=key_file)) == f"api_key_file={key_file}"
    assert describe_credential(admin(api_key=API_KEY)) == "api_key"


@pytest.mark.parametrize(
    "address", ["localhost:7170", "LOCALHOST:1", "127.0.0.1:7170", "127.9.9.9:1", "[::1]:7170", "localhost.:1"]
)
def test_loopback_takes_credentials_in_plain_text(address):
    assert is_loopback(address)
    assert admin(bootstrap_servers=address, api_key=API_KEY).api_key == API_KEY


@pytest.mark.parametrize(
    "address",
    ["broker-1:7181", "10.0.0.1:7170", "localhost.example.org:1", "127.0.0.1.example.org:1", "[::2]:1", "0.0.0.0:1"],
)
def test_other_hosts_need_tls_or_the_setting_that_allows_it(address):
    """In plain text the settings are refused; with TLS, or if it is allowed, they are taken."""
    for credential in ({"api_key": API_KEY}, {"token_file": "/run/token"}, {"token_provider": lambda: JWT}):
        with pytest.raises(ConfigError, match="in plain text") as raised:
            admin(bootstrap_servers=address, **credential)
        assert SECRET not in str(raised.value)
        refuse_plaintext(admin(security_protocol="SSL", bootstrap_servers=address, **credential), address)
        admin(bootstrap_servers=address, allow_plaintext_credentials=True, **credential)
    admin(bootstrap_servers=address)


def test_one_remote_address_among_several_is_refused():
    with pytest.raises(ConfigError, match="far:2"):
        admin(bootstrap_servers="localhost:1,far:2", api_key=API_KEY)


def test_no_text_about_settings_has_the_secret():
    """Neither their `repr` nor that of a client, an error or the reference page."""
    config = admin(api_key=API_KEY)
    with headrace.Admin(bootstrap_servers="localhost:1", api_key=API_KEY) as client:
        texts = [repr(config), str(config), repr(client), str(describe(AdminConfig))]
    for wrong in ({"api_key": API_KEY + "!"}, {"api_key": API_KEY.encode()}, {"api_key": SECRET}):
        with pytest.raises(ConfigError, match="api_key") as raised:
            admin(**wrong)
        texts += [str(raised.value), repr(raised.value)]
    assert not [text for text in texts if SECRET in text]
    assert pickle.loads(pickle.dumps(config)).api_key == API_KEY


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (SECRET.encode(), "is no API key"),
        (API_KEY.encode() + b" and more", "is no API key"),
        (b"hrk_\xff\xfe" + SECRET.encode(), "is no API key"),
        (JWT.encode(), "is no API key"),
        (b"hrk_a_" + b"b" * MAX_CREDENTIAL_BYTES, "is no API key"),
    ],
)
def test_a_wrong_file_is_named_and_its_content_is_not(tmp_path, content, problem):
    """The error is raised when the client is made, names setting, file and problem, and has no trace of the content."""
    path = tmp_path / "key"
    path.write_bytes(content)
    for make in (headrace.Admin, headrace.aio.Admin, headrace.Producer):
        with pytest.raises(ConfigError, match=problem) as raised:
            make(bootstrap_servers="localhost:1", api_key_file=str(path))
        assert f"api_key_file={path}" in str(raised.value)
        error = raised.value
        while error is not None:
            assert SECRET not in f"{error!r} {error.__dict__}"
            error = error.__cause__ or error.__context__


def test_a_missing_file_is_an_error_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"token_file=.*token cannot be read: No such file"):
        headrace.Admin(bootstrap_servers="localhost:1", token_file=str(tmp_path / "token"))


def test_files_are_read_again(tmp_path, key_file):
    """Each exchange has the file's content of then."""
    path = tmp_path / "token"
    path.write_text(f" {JWT}\n")
    config = admin(token_file=str(path))
    assert read_token(config) == JWT
    path.write_text("a.b.c")
    assert read_token(config) == "a.b.c"
    assert read_api_key(admin(api_key_file=key_file)) == API_KEY


def test_a_provider_returns_a_token_or_the_error_says_what():
    assert provided_token(f"{JWT}\n") == JWT

    async def later():
        return JWT

    for wrong, problem in ((None, "NoneType"), ("a b", "no JSON Web Token"), ("", "empty"), (later(), "awaitable")):
        with pytest.raises(ConfigError, match=problem):
            provided_token(wrong)
    with pytest.raises(ConfigError, match="token_provider"):
        admin(token_provider="a.b.c")


def test_the_environment_has_credentials(monkeypatch, key_file):
    """Without `bootstrap_servers` in the code it is read; a credential in the code replaces that in the environment."""
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", key_file)
    assert build(AdminConfig, {}).api_key_file == key_file
    replaced = build(AdminConfig, {"api_key": API_KEY})
    assert (replaced.api_key, replaced.api_key_file) == (API_KEY, "")
    assert admin().api_key_file == ""
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", key_file)
    with pytest.raises(ConfigError, match="api_key_file and token_file"):
        build(AdminConfig, {})


def test_the_environment_allows_plain_text(monkeypatch):
    """Words for yes and no are taken; any other is an error."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "far:1")
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    for text, expected in (("true", True), ("1", True), ("TRUE", True)):
        monkeypatch.setenv("HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS", text)
        assert build(AdminConfig, {}).allow_plaintext_credentials is expected
    for text, problem in (("false", "plain text"), ("0", "plain text"), ("yes", "true or false")):
        monkeypatch.setenv("HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS", text)
        with pytest.raises(ConfigError, match=problem):
            build(AdminConfig, {})


def test_producers_of_a_client_have_its_credential(key_file):
    """Dead letters and claims of the audit are sent as the client that makes them."""
    provider = lambda: JWT  # noqa: E731
    for credential in ({"api_key": API_KEY}, {"api_key_file": key_file}, {"token_provider": provider}):
        config = build(ProducerConfig, {"bootstrap_servers": "localhost:1", "audit_topic": "audit", **credential})
        for settings in (producer_settings(config), publisher_settings(config)):
            copied = build(ProducerConfig, settings)
            assert {name: getattr(copied, name) for name in credential} == credential
