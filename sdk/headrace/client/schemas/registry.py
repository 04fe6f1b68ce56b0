"""Client of a schema registry with Confluent's REST interface, such as that of headrace's coordinators.

Calls block, and any thread may make them. A schema never changes under its id, so that each is fetched once and kept,
and known ones are available while the registry is not. With several URLs, the next one is tried if one is unreachable.
"""

import json
import socket
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from headrace.client.base.config import AdminConfig, build
from headrace.client.base.credentials import credential_of, provided_token, provider_error, read_api_key, read_token
from headrace.client.base.errors import ConfigError
from headrace.client.net.security import ChannelSecurity
from headrace.wire.addresses import is_loopback
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import ErrorCode, HeadraceError, Outcome, TransportError

MAX_SCHEMAS = 1_000
"""Schemas that a client keeps; the one that was fetched first goes first."""
MAX_ANSWER_BYTES = 16 << 20
PAGE_SCHEMAS = 100
"""Schemas requested at once of a list; fewer if they are too large together."""
TOO_LARGE = 413
"""HTTP status of a list that is too large."""
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_CODES = {401: ErrorCode.UNAUTHENTICATED, 403: ErrorCode.NOT_AUTHORIZED, 409: ErrorCode.CONFLICT}


_ACTIONS = {
    404: "Check that the URL is that of a schema registry, without a path.",
    40401: "List the subjects with `headrace schema list`, or register one: `headrace schema register SUBJECT FILE`.",
    40402: "List the versions with `headrace schema list SUBJECT`.",
    40403: "Check that the URL is that of the registry in which the schema was registered.",
    40404: "Delete it permanently (`--permanent`): until then its ids are readable.",
    40405: "Delete it without `--permanent` first.",
    40406: "Delete it permanently (`--permanent`): until then its id is readable.",
    40407: "Delete it without `--permanent` first.",
}
"""Next steps, by the code of the registry, whose messages have none for these."""


class SchemaRegistryError(HeadraceError):
    """The registry refused a request.

    Attributes:
        status: HTTP status.
        error_code: code of the registry, such as 40401 for an unknown subject.
    """

    def __init__(self, message: str, *, status: int, error_code: int) -> None:
        code = _CODES.get(status, ErrorCode.INVALID_REQUEST if status < 500 else ErrorCode.INTERNAL)
        outcome = Outcome.NOT_APPLIED if status < 500 else Outcome.UNKNOWN
        action = _ACTIONS.get(error_code, "")
        super().__init__(message, code=code, outcome=outcome, retriable=status in (429, 503), action=action)
        self.status = status
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """Use of a registered schema by another one, under a name in its text."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """Schema that the registry has."""

    schema_id: int
    schema_type: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    text: str
    references: tuple[SchemaReference, ...] = ()
    subject: str = ""
    """Empty if it was found by its id."""
    version: int = 0


def registry_urls(url: str) -> list[str]:
    """Return the URLs of a registry, which commas separate.

    Raises:
        ConfigError: If one is malformed, or there is none.
    """
    urls = [part.strip().rstrip("/") for part in url.split(",") if part.strip()]
    if not urls or not all(urlsplit(part).scheme in ("http", "https") for part in urls):
        raise ConfigError(f"url={url!r} is no http or https URL", action="Write http://host:port.")
    return urls


class SchemaRegistry:
    """Registry at one or more URLs. See the module.

    Args:
        url: `http://host:port` or `https://host:port`; several are separated by commas.
        settings: those of `Admin` for TLS, credentials and `request_timeout_ms`. Without a credential, and without
            `bootstrap_servers`, they come from the environment.

    Raises:
        ConfigError: For a malformed URL, an unknown setting, or a credential that would be sent in plain text.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self._config = build(AdminConfig, settings)
        self._urls = registry_urls(url)
        self._credential = credential_of(self._config)
        for part in self._urls:
            self._check_plaintext(part)
        self._security = ChannelSecurity(self._config)
        self._schemas: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._referenced: dict[tuple[str, int, bool], RegisteredSchema] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({','.join(self._urls)})"

    def _check_plaintext(self, url: str) -> None:
        parts = urlsplit(url)
        allowed = parts.scheme == "https" or self._config.allow_plaintext_credentials
        if self._credential and not allowed and not is_loopback(f"{parts.hostname}:{parts.port or 80}"):
            raise ConfigError(
                f"{self._credential} would be sent to {url} in plain text",
                action="Use an https URL, or set allow_plaintext_credentials=True if the network encrypts.",
            )

    # --- schemas ---

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id, from memory if it is known.

        Raises:
            SchemaRegistryError: If there is none, or the caller may not see it.
            TransportError: If no URL can be reached.
        """
        found = self._schemas.get(schema_id)
        if found is None:
            found = _read(self.request("GET", f"/schemas/ids/{schema_id}"), schema_id=schema_id)
            self._schemas[schema_id] = found
            while len(self._schemas) > MAX_SCHEMAS:
                self._schemas.popitem(last=False)
        return found

    def latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema:
        """Return the latest version of a subject; raise as `by_id`.

        `serialized` makes the text of a Protobuf schema its `FileDescriptorProto` in base64.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return _read(self.request("GET", path + ("?format=serialized" if serialized else "")))

    def version(self, subject: str, version: int, *, serialized: bool = False) -> RegisteredSchema:
        """Return a version of a subject, from memory if a schema that refers to it was read; raise as `by_id`.

        `serialized` is that of `latest`.
        """
        found = self._referenced.get((subject, version, serialized))
        if found is None:
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            found = _read(self.request("GET", path + ("&format=serialized" if serialized else "")))
            self._referenced[subject, version, serialized] = found
        return found

    def look_up(
        self, subject: str, text: str, schema_type: str, references: Sequence[SchemaReference] = ()
    ) -> RegisteredSchema:
        """Return the version of a subject that has a schema; raise as `by_id`."""
        body = _body(text, schema_type, references)
        return _read(self.request("POST", f"/subjects/{quote(subject, safe='')}", body))

    def register(self, subject: str, text: str, schema_type: str, references: Sequence[SchemaReference] = ()) -> int:
        """Register a schema as a version of a subject, unless it is one, and return its id.

        Raises:
            SchemaRegistryError: If it is not valid, not compatible with earlier versions, or not allowed.
            TransportError: If no URL can be reached.
        """
        body = _body(text, schema_type, references)
        return int(self.request("POST", f"/subjects/{quote(subject, safe='')}/versions", body)["id"])

    def check(self, subject: str, text: str, schema_type: str, references: Sequence[SchemaReference] = ()) -> list[str]:
        """Return why a schema may not be the next version of a subject; empty if it may. Raise as `register`."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        answer = self.request("POST", path, _body(text, schema_type, references))
        return [] if answer["is_compatible"] else [str(message) for message in answer["messages"]]

    def dependencies(self, schema: RegisteredSchema, *, serialized: bool = False) -> dict[str, str]:
        """Return the texts that a schema refers to, by name, each after those that it needs; raise as `by_id`.

        `serialized` is that of `latest`.
        """
        found: dict[str, str] = {}
        for reference in schema.references:
            referred = self.version(reference.subject, reference.version, serialized=serialized)
            found.update(self.dependencies(referred, serialized=serialized))
            found[reference.name] = referred.text
        return found

    def list_latest(self) -> Iterator[dict[str, Any]]:
        """Yield the latest version of every subject as the registry describes it; raise as `by_id`.

        Each page begins after the last subject, whatever is registered and deleted meanwhile. A registry that is not
        headrace's knows only offsets: there a subject is omitted if one before it is deleted between two pages.
        """
        listed: set[str] = set()
        after = ""
        limit = PAGE_SCHEMAS
        while True:
            try:
                place = f"offset={len(listed)}&after={quote(after, safe='')}"
                page = self.request("GET", f"/schemas?latestOnly=true&{place}&limit={limit}")
            except SchemaRegistryError as error:
                if error.status != TOO_LARGE or limit == 1:
                    raise
                limit //= 2
                continue
            more = [each for each in page if each["subject"] not in listed]
            if not more:  # Also of a registry that returns all of them whatever the offset.
                return
            yield from more
            listed.update(each["subject"] for each in more)
            after = more[-1]["subject"]

    # --- requests ---

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request and return the JSON of its answer.

        Raises:
            SchemaRegistryError: If it is refused.
            TransportError: If no URL can be reached.
            ConfigError: If the settings' file or function has no credential.
            UnauthenticatedError: If the function fails.
        """
        failure: Exception | None = None
        credential, call_try = self._read_credential(), CallTry.first()
        for url in self._urls:
            try:
                return self._send(url, method, path, body, credential, call_try)
            except (OSError, HTTPException, ValueError) as error:
                failure = error
                if not isinstance(getattr(error, "reason", error), (ConnectionRefusedError, socket.gaierror)):
                    call_try = call_try.next()  # It may have arrived.
        reason = getattr(failure, "reason", None) or failure
        raise TransportError(
            f"the schema registry at {', '.join(self._urls)} cannot be reached: {reason}",
            action="Check the URL, and that a coordinator with schema_registry_listen runs.",
        ) from failure

    def _read_credential(self) -> str:
        """Return the API key or JSON Web Token as it is now; empty without one. Raises as `request`."""
        if not self._credential:
            return ""
        if self._config.token_provider is not None:
            try:
                provided = self._config.token_provider()
            except Exception as error:
                raise provider_error(error) from error
            return provided_token(provided)
        return read_token(self._config) if self._config.token_file else read_api_key(self._config)

    def _send(
        self,
        url: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        credential: str,
        call_try: CallTry,
    ) -> Any:
        headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE, CALL_TRY_KEY: str(call_try)}
        if credential:
            headers["Authorization"] = f"Bearer {credential}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, headers, method=method)
        https = urllib.request.HTTPSHandler(context=self._security.context())
        seconds = self._config.request_timeout_ms / 1_000
        try:
            with urllib.request.build_opener(https, _NoRedirects).open(request, timeout=seconds) as answer:
                found = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        if len(found) > MAX_ANSWER_BYTES:
            message = f"the answer to {method} {path} has more than {MAX_ANSWER_BYTES} bytes"
            raise SchemaRegistryError(message, status=TOO_LARGE, error_code=TOO_LARGE)
        return json.loads(found)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as an error: following it would send the credential to a server that the user did not name."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _refused(error: urllib.error.HTTPError) -> SchemaRegistryError:
    with error:
        try:
            answer = json.loads(error.read(MAX_ANSWER_BYTES))
            message, code = str(answer["message"]), int(answer["error_code"])
        except (OSError, ValueError, KeyError, TypeError):
            message, code = f"HTTP status {error.code}", error.code
        if 300 <= error.code < 400:
            message = f"HTTP status {error.code}: redirects are not followed, here to {error.headers.get('Location')!r}"
    return SchemaRegistryError(message, status=error.code, error_code=code)


def _body(text: str, schema_type: str, references: Sequence[SchemaReference]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text, "schemaType": schema_type}
    if references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in references
        ]
    return body


def _read(answer: Mapping[str, Any], schema_id: int = 0) -> RegisteredSchema:
    references = tuple(
        SchemaReference(each["name"], each["subject"], each["version"]) for each in answer.get("references") or ()
    )
    return RegisteredSchema(
        schema_id or int(answer["id"]),
        answer.get("schemaType", "AVRO"),
        answer["schema"],
        references,
        answer.get("subject", ""),
        answer.get("version", 0),
    )
