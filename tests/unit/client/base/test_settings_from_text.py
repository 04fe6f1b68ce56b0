"""Settings that are given as text, in the environment or on a command line."""

import pytest
from headrace.client.base.config import AdminConfig, build, settings_from_text
from headrace.client.base.errors import ConfigError


def test_text_becomes_the_type_of_the_setting():
    """Truth values, numbers and words."""
    texts = {"allow_plaintext_credentials": "True", "request_timeout_ms": "7000", "ssl_cafile": "/ca.pem"}
    settings = settings_from_text(AdminConfig, texts)
    assert settings == {"allow_plaintext_credentials": True, "request_timeout_ms": 7_000, "ssl_cafile": "/ca.pem"}
    del settings["ssl_cafile"]  # It needs TLS.
    assert build(AdminConfig, {"bootstrap_servers": "a:1", **settings}).request_timeout_ms == 7_000


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("allow_plaintext_credentials", "maybe", "'maybe' is not true or false"),
        ("request_timeout_ms", "7s", "'7s' is not a whole number"),
    ],
)
def test_wrong_text_is_refused_by_name(name, text, said):
    """With the name of the setting."""
    with pytest.raises(ConfigError, match=f"{name}={said}"):
        settings_from_text(AdminConfig, {name: text})


def test_an_unknown_setting_is_left_to_the_check_of_all():
    """Which names the nearest."""
    with pytest.raises(ConfigError, match="unknown setting 'ssl_ca'"):
        build(AdminConfig, settings_from_text(AdminConfig, {"ssl_ca": "x"}))
