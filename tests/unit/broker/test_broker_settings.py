"""Settings of a broker that contradict each other are refused before it starts."""

import pytest
from headrace_broker.settings import BrokerSettings
from headrace_server.settings import SettingsError, load_settings

NEEDED = {"broker_id": 1, "data_dir": "/data"}
TRANSFER = {"transfer_listen": "127.0.0.1:0"}
CLIENTS_TLS = {"tls_cert_file": "a", "tls_key_file": "b", "internal_tls_ca_file": "c"}
INTERNAL_TLS = {"internal_tls_cert_file": "a", "internal_tls_key_file": "b", "internal_tls_ca_file": "c"}


def loaded(**given: object) -> BrokerSettings:
    return load_settings(BrokerSettings, overrides={**NEEDED, **given})


@pytest.mark.parametrize("client_auth", [{}, {"tls_client_auth": "required", "tls_ca_file": "d"}])
def test_a_transfer_port_with_tls_for_clients_is_refused(client_auth: dict[str, str]) -> None:
    """The port has neither encryption nor authentication: it would bypass what clients must present."""
    with pytest.raises(SettingsError, match="clients have to speak TLS, which the transfer port does not: leave"):
        loaded(**TRANSFER, **CLIENTS_TLS, **client_auth)
    assert loaded(**CLIENTS_TLS, **client_auth).transfer_listen == ""


def test_tls_among_brokers_alone_leaves_the_transfer_port() -> None:
    """Clients speak plain text then, and replicas do not use it."""
    assert loaded(**TRANSFER, **INTERNAL_TLS).clients_files is None
    assert loaded(**TRANSFER).transfer_listen == "127.0.0.1:0"
