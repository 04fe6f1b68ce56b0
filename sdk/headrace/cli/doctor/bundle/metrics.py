"""Metrics of the processes for a bundle, as text, from the endpoints that are given or that the logs name."""

import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from headrace.cli.common.session import Session
from headrace.cli.doctor.bundle.contents import BundleContents
from headrace.cli.doctor.bundle.redaction import redact_text

if TYPE_CHECKING:
    from headrace.client.base.config import AdminConfig

PAGES = ("/metrics", "/metrics/detail")
MAX_PAGE_BYTES = 4 << 20
HOW = "Give --metrics URL, with the port of the setting metrics_listen."


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the credential to an address that the caller did not name; it is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


class MetricsPages:
    """Reads pages of metrics into a bundle. Belongs to the command's thread.

    The credential is sent only to endpoints that the caller named, and not in plain text to other machines unless
    `allow_plaintext_credentials` says so; never to an address that comes from a log.
    """

    def __init__(self, session: Session, contents: BundleContents) -> None:
        self._session = session
        self._contents = contents

    def collect(self, urls: Iterable[str], addresses: Iterable[str]) -> None:
        """Read the pages of every endpoint. Each that cannot be read is a problem.

        Args:
            urls: given by the caller, `http://host:port`, `https://host:port` or `host:port`.
            addresses: `host:port` from logs.
        """
        given = {(url if "://" in url else f"http://{url}").rstrip("/"): True for url in urls}
        endpoints = {**{f"http://{each}": False for each in addresses}, **given}
        if not endpoints:
            self._contents.add_problem("metrics", f"no log says where a process serves metrics. {HOW}")
        for url, is_given in endpoints.items():
            self._session.note(f"metrics of {url}")
            for page in PAGES:
                self._add(url, page, sends_credential=is_given)

    def _add(self, url: str, page: str, *, sends_credential: bool) -> None:
        from headrace.wire.errors import HeadraceError

        where = url.partition("://")[2].partition("/")[0].rpartition("@")[2].replace(":", "-")
        name = f"metrics/{quote(where, safe='')}{page.replace('/', '-')}.txt"
        try:
            headers = self._authorization(url) if sends_credential else {}
            request = urllib.request.Request(url + page, headers=headers)
            with self._opener(url).open(request, timeout=self._session.timeout) as answer:
                content = answer.read(MAX_PAGE_BYTES + 1)
        except HeadraceError as error:
            self._contents.add_problem(name, f"{error.message}. {error.action}")
        except (OSError, ValueError, HTTPException) as error:
            self._contents.add_problem(name, f"{url}{page}: {getattr(error, 'reason', None) or error}. {HOW}")
        else:
            text = redact_text(content.decode(errors="backslashreplace"))
            self._contents.add_text(name, text, f"{url}{page}", max_bytes=MAX_PAGE_BYTES)

    def _config(self) -> "AdminConfig":
        from headrace.client.base.config import AdminConfig, build

        return build(AdminConfig, self._session.settings())

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        """Return what opens a URL. The client's certificate files, which may have expired, are read only for TLS."""
        from headrace.client.net.security import ChannelSecurity

        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if urlsplit(url).scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ChannelSecurity(self._config()).context()))
        return urllib.request.build_opener(*handlers)

    def _authorization(self, url: str) -> dict[str, str]:
        from headrace.client.base.credentials import credential_of, read_api_key, refuse_plaintext

        config = self._config()
        if credential_of(config) not in ("api_key", "api_key_file"):
            return {}
        where = urlsplit(url)
        if where.scheme != "https":
            refuse_plaintext(config, f"{where.hostname}:{where.port or 80}")
        return {"Authorization": f"Bearer {read_api_key(config)}"}
