"""Coordinators that require identities, as processes: the first administrator, sessions, and tokens of an issuer."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.errors import ConflictError, UnauthenticatedError, from_rpc_error
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.etcd_backups import command
from tests.unit.coordinator.issuer_parts import AUDIENCE, ISSUER, KEYS, key_set, token

WAIT_SECONDS = 30.0


class Server:
    """Identity's two services of one process, for one caller."""

    def __init__(self, address: str, bearer: str = "") -> None:
        self.channel = grpc.insecure_channel(address)
        self._metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
        self._stubs = [stub(self.channel) for stub in (auth_pb2_grpc.AuthServiceStub, auth_pb2_grpc.SessionServiceStub)]

    def call(self, method: str, /, **fields: Any) -> Any:
        """Call a method of either."""
        stub = next(stub for stub in self._stubs if hasattr(stub, method))
        try:
            request = getattr(auth_pb2, f"{method}Request")(**fields)
            return getattr(stub, method)(request, timeout=20, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=2, identity=True)) as cluster:
        yield cluster


@pytest.fixture
def connect() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def connect(address: str, bearer: str = "") -> Server:
        servers.append(Server(address, bearer))
        return servers[-1]

    yield connect
    for server in servers:
        server.channel.close()


def admin_key(cluster: LocalCluster) -> str:
    return Path(cluster.client_settings["api_key_file"]).read_text().strip()


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def test_a_session_of_one_coordinator_counts_at_every_server(secured: LocalCluster, connect: Any) -> None:
    """The controller's signing key is known to all, and the key in the file is an administrator's."""
    first, second = (coordinator.address for coordinator in secured.coordinators)
    session = connect(first).call("OpenSession", api_key=admin_key(secured))
    assert session.user == "admin"
    for address in (first, second, secured.brokers[0].address):
        server = connect(address, session.token)
        until(lambda: not _is_ended(server), "the server knows the first key")  # noqa: B023
        found = server.call("WhoAmI")
        assert (found.user, found.identified_by) == ("admin", "API key")
        assert [(grant.role, grant.resource) for grant in found.grants] == [("admin", "cluster")]
    with pytest.raises(UnauthenticatedError):
        connect(second, session.token[:-2]).call("ListUsers")


def test_a_deleted_key_ends_its_session_at_every_server(secured: LocalCluster, connect: Any) -> None:
    """Within two seconds, although the token is valid by itself; the last administrator stays."""
    first, second = (coordinator.address for coordinator in secured.coordinators)
    admin = connect(first, admin_key(secured))
    admin.call("PutUser", user=auth_pb2.User(name="ada"))
    made = admin.call("CreateApiKey", user="ada")
    session = until(lambda: _open(connect(second), made.secret), "the other coordinator knows the key")
    others = [connect(address, session.token) for address in (first, second, secured.brokers[0].address)]
    for other in others:
        until(lambda: not _is_ended(other), "the server knows the first key")  # noqa: B023
    assert [other.call("WhoAmI").user for other in others] == ["ada"] * 3
    admin.call("DeleteApiKey", key_id=made.api_key.key_id)
    deleted = time.monotonic()
    for other in others:
        until(lambda: _is_ended(other), "the session has ended")  # noqa: B023
    assert time.monotonic() - deleted < 2
    with pytest.raises(ConflictError, match="admin is the last administrator"):
        admin.call("DeleteUser", name="admin")


def _open(server: Server, api_key: str) -> Any:
    try:
        return server.call("OpenSession", api_key=api_key)
    except UnauthenticatedError:
        return None


def _is_ended(server: Server) -> bool:
    try:
        server.call("WhoAmI")
    except UnauthenticatedError:
        return True
    return False


def test_a_token_of_an_issuer_is_exchanged_at_coordinators(secured: LocalCluster, connect: Any, tmp_path: Path) -> None:
    """With the keys in a file; a broker says where; the name, the groups and the end are the token's."""
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(*KEYS.values()))
    address = secured.coordinators[0].address
    admin = connect(address, admin_key(secured))
    issuer = auth_pb2.Issuer(name="sso", issuer=ISSUER, audience=AUDIENCE, keys_url=str(path), groups_claim="groups")
    admin.call("PutIssuer", issuer=issuer)
    admin.call("PutGrant", grant=auth_pb2.Grant(principal="group:team", role="reader", resource="topic:clicks"))
    now = int(time.time())
    jwt = token(iat=now, nbf=now, exp=now + 60, groups=["team", "unknown"])
    referred = connect(secured.brokers[0].address).call("OpenSession", jwt=jwt)
    assert address in referred.coordinators
    session = connect(address).call("OpenSession", jwt=jwt)
    assert session.user == "sso:ada"
    assert session.lifetime_ms <= 60_000
    found = connect(address, session.token).call("WhoAmI")
    assert ([*found.groups], [grant.resource for grant in found.grants]) == (["team"], ["topic:clicks"])
    assert connect(address, session.token).call("CheckAccess", operation="read", resource="topic:clicks").allowed
    file = tmp_path / "token"
    file.write_text(jwt)
    registry = SchemaRegistry(secured.schema_registry_urls[0], token_file=str(file))
    assert registry.request("GET", "/subjects") == []
    with pytest.raises(SchemaRegistryError, match="sso:ada has no grant of describe for schema clicks"):
        registry.latest("clicks")
    for bad, reason in (
        (token(iat=now, nbf=now, exp=now + 60, aud="other"), f"lacks '{AUDIENCE}'"),
        (token(exp=now - 120, iat=now - 240, nbf=now - 240), "expired on"),
        (token(iat=now, nbf=now, exp=now + 60, iss="https://other"), "'https://other' is not accepted"),
        (jwt.ljust(1 << 15, "A"), "has 32768 characters"),
    ):
        with pytest.raises(UnauthenticatedError, match=reason):
            connect(address).call("OpenSession", jwt=bad)


def test_the_first_administrator_comes_from_the_servers_machine(
    own_cluster: Callable[..., LocalCluster], connect: Any, tmp_path: Path
) -> None:
    """Once; then only if all are lost. What is printed is the key alone, what is logged has no secret."""
    cluster = own_cluster(brokers=1)
    settings = cluster.coordinators[0].spec.settings
    out = tmp_path / "admin.key"
    made = command("headrace_coordinator", "bootstrap-admin", "--user", "first", "--out", out, **settings)
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    api_key = out.read_text().strip()
    assert api_key.rpartition("_")[2] not in made.stdout + made.stderr
    server = connect(cluster.coordinators[0].address)
    session = until(lambda: _open(server, api_key), "the coordinator knows the key")
    assert session.user == "first"
    again = command("headrace_coordinator", "bootstrap-admin", "--user", "second", **settings)
    assert again.returncode != 0
    assert "the cluster has an administrator" in again.stderr
    recovered = command("headrace_coordinator", "bootstrap-admin", "--user", "first", "--recover", **settings)
    assert recovered.returncode == 0, recovered.stderr
    assert "administrator_recovered" in recovered.stderr
    assert until(lambda: _open(server, recovered.stdout.strip()), "the coordinator knows the new key").user == "first"
    assert _open(server, api_key) is None
    logs = [part.log_file for part in cluster.coordinators]
    until(lambda: sum(log.read_text().count("BootstrapAdmin") for log in logs) == 2, "the controller has noted both")
