"""Kubernetes' API over HTTPS, as far as the tests and their volumes need it. What users do, the tests do by kubectl."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused; `code` is the status of HTTP."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Api:
    """Asks one API server as one user. Any thread."""

    def __init__(self, server: str, token: str, ca_file: Path) -> None:
        self._server, self._token = server, token
        self._context = ssl.create_default_context(cafile=str(ca_file))

    def get(self, path: str) -> dict[str, Any]:
        """An object, or a list of them."""
        return self._objects("GET", path)

    def create(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Make an object in the collection at `path`."""
        return self._objects("POST", path, content)

    def patch(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Merge `content` over an object, or over its status."""
        return self._objects("PATCH", path, content)

    def delete(self, path: str) -> dict[str, Any]:
        """Delete an object."""
        return self._objects("DELETE", path)

    def text(self, path: str) -> str:
        """The text at a path that has no object, as /readyz."""
        return self._ask("GET", path, None).decode()

    def _objects(self, method: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._ask(method, path, content))
        return answer

    def _ask(self, method: str, path: str, content: dict[str, Any] | None) -> bytes:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": MERGE if method == "PATCH" else "application/json",
        }
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._server + path, method=method, headers=headers, data=body)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=self._context) as answer:
                data: bytes = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode("utf-8", "replace")) from error
        return data
