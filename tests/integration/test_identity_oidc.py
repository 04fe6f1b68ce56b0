"""Tokens of a real OpenID Connect provider, `oidc-provider` on Node, are exchanged at coordinators and produce."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace.wire.errors import UnauthenticatedError
from headrace_devcluster.certificates import Authority
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.children import running

SOURCE = Path(__file__).parent / "oidc"
SECRET = "a secret of the test"
WAIT_SECONDS = 30.0
"""A coordinator looks for an unknown key at most every ten seconds."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The provider with its packages, in a temporary directory."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("the provider needs Node and npm, which are not installed")
    directory = tmp_path_factory.mktemp("oidc")
    for name in ("package.json", "package-lock.json", "provider.js"):
        shutil.copy(SOURCE / name, directory)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--cache={directory / 'cache'}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "provider.js"


class Provider:
    """The provider, which keeps its address when it starts again with another key."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self.authority = Authority(directory / "authority", "issuer")
        self._certificate = self.authority.issue("localhost")
        self._port = "0"
        self._running = contextlib.ExitStack()
        self._context = ssl.create_default_context(cafile=str(self.authority.ca_file))

    @property
    def address(self) -> str:
        return f"https://localhost:{self._port}"

    def start(self, algorithm: str, key_id: str) -> None:
        """Sign by a new key, and forget the one before."""
        self.stop()
        files = [str(self._certificate.cert_file), str(self._certificate.key_file)]
        command = ["node", str(self._program), self._port, *files, algorithm, key_id]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": self._program.parent}
        process = self._running.enter_context(running(command, **options))
        assert process.stdout is not None
        self._port = process.stdout.readline().strip()
        assert self._port, "the provider has not started"

    def stop(self) -> None:
        """Be away, until `start`."""
        self._running.close()

    def token(self, audience: str = "headrace") -> str:
        """Return an access token by the grant of client credentials."""
        form = {"grant_type": "client_credentials", "resource": f"urn:{audience}"}
        basic = base64.b64encode(f"billing:{urllib.parse.quote_plus(SECRET)}".encode()).decode()
        request = urllib.request.Request(
            f"{self.address}/token", urllib.parse.urlencode(form).encode(), {"Authorization": f"Basic {basic}"}
        )
        with urllib.request.urlopen(request, timeout=20, context=self._context) as answer:
            return str(json.load(answer)["access_token"])


@pytest.fixture
def provider(program: Path, tmp_path: Path) -> Iterator[Provider]:
    made = Provider(program, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def send(cluster: LocalCluster, token: str) -> int:
    """Produce a record with a token; return its offset."""
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, token_provider=lambda: token) as producer:
        return producer.send("clicks", b"x").result(timeout=20).offset


def sent(cluster: LocalCluster, token: str) -> int:
    """Produce as `send` as soon as the coordinators have the key of the token."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(UnauthenticatedError):
            return send(cluster, token)
        time.sleep(0.2)
    return send(cluster, token)


def header(token: str) -> dict[str, Any]:
    first = token.partition(".")[0]
    return dict(json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4))))


def test_tokens_of_a_provider_produce_while_it_replaces_its_keys(provider: Provider) -> None:
    """With each algorithm, also while it is away; another audience, and a key that is gone, are refused."""
    provider.start("ES256", "first")
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=2, identity=True)) as cluster:
        admin_settings: dict[str, Any] = dict(cluster.client_settings)
        with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **admin_settings) as admin:
            admin.create_topic("clicks")
            admin.create_issuer(
                "corp",
                issuer=provider.address,
                audience="headrace",
                keys_url=f"{provider.address}/.well-known/openid-configuration",
                keys_ca_pem=provider.authority.ca_file.read_text(),
            )
            admin.grant("corp:billing", "writer", "topic:clicks")
        first = provider.token()
        assert (header(first)["alg"], header(first)["kid"]) == ("ES256", "first")
        assert sent(cluster, first) == 0
        with pytest.raises(UnauthenticatedError, match="lacks 'headrace'"):
            send(cluster, provider.token("other"))
        provider.stop()
        assert send(cluster, first) == 1
        for offset, (algorithm, key_id) in enumerate((("RS256", "second"), ("EdDSA", "third")), 2):
            provider.start(algorithm, key_id)
            token = provider.token()
            assert (header(token)["alg"], header(token)["kid"]) == (algorithm, key_id)
            assert sent(cluster, token) == offset
        with pytest.raises(UnauthenticatedError, match="key"):
            for _ in cluster.coordinators * 2:  # Each has looked for the third key, or does so now.
                send(cluster, first)
