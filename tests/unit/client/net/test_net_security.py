"""The SDK's settings for TLS: what is refused when a client is made, and what happens when files change."""

import headrace
import pytest
from headrace.client.base.config import AdminConfig, build
from headrace.client.net import security
from headrace.client.net.security import ChannelSecurity
from headrace_devcluster.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "users")


def settings_of(paths, **changed):
    files = {"ssl_cafile": paths.ca_file, "ssl_certfile": paths.cert_file, "ssl_keyfile": paths.key_file}
    return {"security_protocol": "SSL", **{name: str(path) for name, path in files.items()}, **changed}


def test_settings_for_tls_never_end_in_plain_text(authority):
    """An `ssl_*` setting without security_protocol is an error, and half a certificate is one, too."""
    given = settings_of(authority.issue("client"))
    for wrong in ({"security_protocol": "PLAINTEXT"}, {"security_protocol": "ssl"}, {"ssl_keyfile": ""}):
        with pytest.raises(headrace.HeadraceError, match=r"security_protocol|belong together"):
            headrace.Admin(**{**given, **wrong})


def test_files_that_cannot_be_used_are_refused_when_the_client_is_made(authority, tmp_path):
    """A key of another certificate, a file that is no certificate: an error that names the setting."""
    paths, other = authority.issue("client"), authority.issue("other")
    for wrong in ({"ssl_keyfile": str(other.key_file)}, {"ssl_cafile": str(other.key_file)}):
        with pytest.raises(headrace.HeadraceError, match=next(iter(wrong))):
            headrace.Admin(**settings_of(paths, **wrong))


def test_new_files_are_for_new_channels(authority, monkeypatch):
    """Unchanged files stay the same object, new ones are taken, broken ones leave what was in force."""
    monkeypatch.setattr(security, "LOOK_S", 0.0)
    paths = authority.issue("client")
    known = ChannelSecurity(build(AdminConfig, settings_of(paths)))
    first = known.certificates()
    assert known.certificates() is first
    authority.issue("client")
    second = known.certificates()
    assert second.chain == paths.cert_file.read_bytes() != first.chain
    paths.cert_file.write_text("nothing")
    assert known.certificates() is second
