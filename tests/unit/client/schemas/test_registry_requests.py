"""Requests of a client of a schema registry, to a server that is none."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from headrace.client.schemas import registry as registry_module
from headrace.client.schemas.registry import SchemaRegistry, SchemaRegistryError
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import UnauthenticatedError


@contextmanager
def serving(answer):
    """Run a server: `answer` returns status, headers and body of a path; yield its URL, and what was requested."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization"), self.headers[CALL_TRY_KEY]))
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(name="server")
def fixture_server():
    """A server that redirects to itself: to the same path below `/other`."""
    with serving(lambda path: (302, {"Location": f"/other{path}"}, b"")) as found:
        yield found


def test_a_redirect_is_not_followed(server):
    """The API key would be sent to a server that the user did not name, maybe in plain text."""
    url, asked = server
    registry = SchemaRegistry(url, bootstrap_servers="localhost:7181", api_key="hrk_id1_secret1")
    with pytest.raises(
        SchemaRegistryError, match="302: redirects are not followed, here to '/other/subjects'"
    ) as raised:
        registry.request("GET", "/subjects")
    assert raised.value.status == 302
    assert [each[:2] for each in asked] == [("/subjects", "Bearer hrk_id1_secret1")]


def test_a_token_of_an_issuer_is_sent_as_it_is_now(tmp_path):
    """Users of an issuer have no API key. A file is read again, a function is called again."""
    file = tmp_path / "token"
    with serving(lambda path: (200, {}, b"[]")) as (url, asked):
        provided = iter(["d.e.5", "d.e.6"])
        by_function = SchemaRegistry(url, bootstrap_servers="localhost:7181", token_provider=lambda: next(provided))
        for number in (1, 2):
            file.write_text(f"a.b.{number}\n")
            SchemaRegistry(url, bootstrap_servers="localhost:7181", token_file=str(file)).request("GET", "/")
            by_function.request("GET", "/")
    assert [each[1] for each in asked] == [f"Bearer {token}" for token in ("a.b.1", "d.e.5", "a.b.2", "d.e.6")]


def test_a_function_that_fails_is_named_and_its_text_is_not_told():
    """As by the sessions of brokers: what it says may have a secret."""

    def provide():
        raise RuntimeError("a secret")

    registry = SchemaRegistry("http://localhost:1", bootstrap_servers="localhost:7181", token_provider=provide)
    with pytest.raises(UnauthenticatedError, match="token_provider failed with RuntimeError") as raised:
        registry.request("GET", "/")
    assert "secret" not in str(raised.value)
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("status", "answer", "action"),
    [
        (404, {"error_code": 40401, "message": "Subject 'x' not found."}, "headrace schema register SUBJECT FILE"),
        (404, {"error_code": 40402, "message": "Version 7 not found."}, "headrace schema list SUBJECT"),
        (404, {"error_code": 40403, "message": "Schema 7 not found"}, "the registry in which"),
        (404, {"error_code": 40404, "message": "Subject 'x' was soft deleted."}, "`--permanent`"),
        (404, {"error_code": 40405, "message": "Subject 'x' was not deleted first"}, "without `--permanent` first"),
        (404, "<html>", "the URL is that of a schema registry"),
        (401, {"error_code": 40101, "message": "no API key. Set one."}, ""),
    ],
)
def test_what_is_not_found_names_the_next_step(status, answer, action):
    """The registry's messages have none, so that they are Confluent's."""
    with serving(lambda path: (status, {}, json.dumps(answer).encode())) as (url, _):
        with pytest.raises(SchemaRegistryError) as raised:
            SchemaRegistry(url, bootstrap_servers="localhost:7181").latest("x")
    assert action in raised.value.action
    assert bool(raised.value.action) == bool(action)


SUBJECTS = [f"s{number:03}" for number in range(250)]


@pytest.mark.parametrize("most", [1_000, 30, 1])
@pytest.mark.parametrize("pages", [True, False])
def test_all_subjects_are_listed_whatever_one_answer_may_have(most, pages, monkeypatch):
    """A registry that refuses `most`, one whose answers are too large for the client, and one that knows no pages."""

    def answer(path):
        query = parse_qs(urlsplit(path).query)
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        if pages and limit > most:
            return 413, {}, json.dumps({"error_code": 413, "message": "too many"}).encode()
        found = SUBJECTS[offset : offset + limit] if pages else SUBJECTS
        return 200, {}, json.dumps([{"subject": name} for name in found]).encode()

    with serving(answer) as (url, _):
        found = SchemaRegistry(url, bootstrap_servers="localhost:7181").list_latest()
        assert [each["subject"] for each in found] == SUBJECTS

    if pages:  # The client halves what is too large for itself as well.
        monkeypatch.setattr(registry_module, "MAX_ANSWER_BYTES", 700)
        with serving(answer) as (url, _):
            found = SchemaRegistry(url, bootstrap_servers="localhost:7181").list_latest()
            assert [each["subject"] for each in found] == SUBJECTS


def test_a_page_begins_after_the_last_subject():
    """A subject before it that is deleted or registered between two pages shifts none; names are quoted."""
    subjects = ["a", "b&after=", "c", "d"]

    def answer(path):
        query = parse_qs(urlsplit(path).query)
        after = query.get("after", [""])[0]
        found = [name for name in subjects if name > after][:2]
        subjects[0] = {"": "0", "b&after=": "b"}.get(after, "0")
        return 200, {}, json.dumps([{"subject": name} for name in found]).encode()

    with serving(answer) as (url, asked):
        found = SchemaRegistry(url, bootstrap_servers="localhost:7181").list_latest()
        assert [each["subject"] for each in found] == ["a", "b&after=", "c", "d"]
    assert "&offset=2&after=b%26after%3D&" in asked[1][0]


def test_an_answer_that_is_too_large_is_said_to_be(monkeypatch):
    """It was cut, and the registry called unreachable."""
    monkeypatch.setattr(registry_module, "MAX_ANSWER_BYTES", 10)
    with serving(lambda _: (200, {}, b'["0123456789"]')) as (url, asked):
        with pytest.raises(SchemaRegistryError, match="the answer to GET /subjects has more than 10 bytes") as raised:
            SchemaRegistry(url, bootstrap_servers="localhost:7181").request("GET", "/subjects")
        assert len(asked) == 1
    assert raised.value.status == 413


def test_a_request_that_may_have_arrived_is_repeated_as_another_try():
    """Its first server may still be at it; one that nothing listens at is not."""

    def end(server):
        server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as closing, serving(lambda _: (200, {}, b"{}")) as (url, asked):
        silent = f"http://127.0.0.1:{closing.getsockname()[1]}"
        ends = threading.Thread(target=end, args=(closing,))
        ends.start()
        SchemaRegistry(f"{silent},{url}", bootstrap_servers="localhost:7181").request("GET", "/")
        ends.join()
    with socket.socket() as bound, serving(lambda _: (200, {}, b"{}")) as (url, asked_first):
        bound.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{bound.getsockname()[1]}"
        SchemaRegistry(f"{refusing},{url}", bootstrap_servers="localhost:7181").request("GET", "/")
    assert [CallTry.parse(each[2]).number for each in (*asked, *asked_first)] == [1, 0]
