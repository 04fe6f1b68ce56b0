"""Requests of a client of a schema registry, to a server that is none."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError


@pytest.fixture(name="server")
def fixture_server():
    """A server that redirects to itself: to the same path below `/other`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(302)
            self.send_header("Location", f"/other{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_redirect_is_not_followed(server):
    """The API key would be sent to a server that the user did not name, maybe in plain text."""
    url, asked = server
    registry = SchemaRegistry(url, bootstrap_servers="localhost:7181", api_key="hrk_id1_secret1")
    with pytest.raises(
        SchemaRegistryError, match="302: redirects are not followed, here to '/other/subjects'"
    ) as raised:
        registry.request("GET", "/subjects")
    assert raised.value.status == 302
    assert asked == [("/subjects", "Bearer hrk_id1_secret1")]
