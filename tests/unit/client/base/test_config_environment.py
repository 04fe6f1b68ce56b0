"""Settings that the SDK takes from the environment, as the command line does."""

from headrace.client.base.config import AdminConfig, build


def test_environment_names_the_cluster(monkeypatch):
    """Without `bootstrap_servers` in the code, address and TLS come from the environment; the code's values win."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "a:1,b:2")
    monkeypatch.setenv("HEADRACE_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("HEADRACE_SSL_CAFILE", "ca.pem")
    monkeypatch.setenv("HEADRACE_SSL_SERVER_NAME", "")
    config = build(AdminConfig, {"ssl_cafile": "other.pem"})
    assert config.addresses == ("a:1", "b:2")
    assert (config.security_protocol, config.ssl_cafile, config.ssl_server_name) == ("SSL", "other.pem", "")


def test_environment_is_not_read_for_another_cluster(monkeypatch):
    """With `bootstrap_servers` in the code nothing is taken: the TLS settings belong to the environment's cluster."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setenv("HEADRACE_SECURITY_PROTOCOL", "SSL")
    config = build(AdminConfig, {"bootstrap_servers": "c:3"})
    assert (config.addresses, config.security_protocol) == (("c:3",), "PLAINTEXT")
