"""Credentials of a client: an API key, or JSON Web Tokens from a file or a callable.

`headrace.client.net.sessions` exchanges one for a session token. Nothing here puts a credential into a message: errors
name the setting and the file. Files are read for every exchange, so that a rotated credential needs no restart.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.client.base.errors import ConfigError
from headrace.wire.addresses import is_loopback
from headrace.wire.errors import UnauthenticatedError

if TYPE_CHECKING:
    from headrace.client.base.config import ClientConfig

CREDENTIALS = ("api_key", "api_key_file", "token_file", "token_provider")
"""Settings of which at most one is set."""
MAX_CREDENTIAL_BYTES = 64 * 1024
TokenProvider: TypeAlias = Callable[[], str | Awaitable[str]]
"""Returns a JSON Web Token. Only asyncio clients take an awaitable."""

_API_KEY = re.compile(r"hrk_[a-zA-Z0-9]+_[a-zA-Z0-9]+", re.ASCII)
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)


class _Form(NamedTuple):
    """Form of a credential, and how to get one."""

    noun: str
    pattern: re.Pattern[str]
    action: str


_KEY_FORM = _Form("API key", _API_KEY, "Use a key as `headrace user key create` prints it, alone and whole.")
_TOKEN_FORM = _Form("JSON Web Token", _TOKEN, "Use a token as its issuer signed it: three parts, separated by dots.")


def credential_of(config: "ClientConfig") -> str:
    """Return the name of the setting with the client's credential, or an empty string."""
    return next((name for name in CREDENTIALS if getattr(config, name)), "")


def describe_credential(config: "ClientConfig") -> str:
    """Return the setting with the client's credential, with the path of a file, and without any secret."""
    name = credential_of(config)
    return f"{name}={getattr(config, name)}" if name.endswith("_file") else name


def check_credentials(config: "ClientConfig") -> None:
    """Check the credential of settings, except for the content of a file.

    Raises:
        ConfigError: If there are several, one is malformed, or it would be sent in plain text.
    """
    given = [name for name in CREDENTIALS if getattr(config, name)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are set", action="Set one of them: a client has one identity.")
    if not given:
        return
    if config.api_key:
        _check_form("api_key", _KEY_FORM, config.api_key)
    for address in config.addresses:
        refuse_plaintext(config, address)


def refuse_plaintext(config: "ClientConfig", address: str) -> None:
    """Refuse to send a credential or a session to `host:port` over a network in plain text.

    Raises:
        ConfigError: Without TLS, unless the host is this machine or the settings allow it.
    """
    if config.security_protocol == "SSL" or config.allow_plaintext_credentials or is_loopback(address):
        return
    raise ConfigError(
        f"{credential_of(config)} would be sent to {address} in plain text",
        action="Set security_protocol='SSL', or allow_plaintext_credentials=True if the network encrypts.",
    )


def read_api_key(config: "ClientConfig") -> str:
    """Return the API key of `api_key` or `api_key_file`.

    Raises:
        ConfigError: If the file cannot be read, or has none.
    """
    if config.api_key:
        return config.api_key
    return _read("api_key_file", _KEY_FORM, config.api_key_file)


def read_token(config: "ClientConfig") -> str:
    """Return the token of `token_file`.

    Raises:
        ConfigError: If the file cannot be read, or has none.
    """
    return _read("token_file", _TOKEN_FORM, config.token_file)


def provided_token(result: Any) -> str:
    """Return the token that `token_provider` has returned.

    Raises:
        ConfigError: If it is none.
    """
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigError(
            "token_provider returned an awaitable, for which a blocking client cannot wait",
            action="Set a function that returns the token, or use the classes of headrace.aio.",
        )
    if not isinstance(result, str):
        raise ConfigError(f"token_provider returned {type(result).__name__}, not str")
    return _check_form("token_provider", _TOKEN_FORM, result.strip())


def provider_error(error: Exception) -> UnauthenticatedError:
    """Return the error to raise where `token_provider` has failed with another one, whose text may have a secret."""
    return UnauthenticatedError(
        f"token_provider failed with {type(error).__name__}",
        retriable=True,
        action="The cause is chained; check that its source can be reached.",
    )


def check_credential_file(config: "ClientConfig") -> None:
    """Read the file that the settings name, if any, so that a wrong one is an error before the first call.

    Raises:
        ConfigError: If it cannot be read, or has no credential.
    """
    if config.api_key_file:
        read_api_key(config)
    elif config.token_file:
        read_token(config)


def _read(name: str, form: _Form, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CREDENTIAL_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{name}={path} cannot be read: {error.strerror}", action="Name a file that this process may read."
        ) from error
    return _check_form(f"{name}={path}", form, content.decode(errors="replace").strip())


def _check_form(source: str, form: _Form, text: str) -> str:
    if not text:
        raise ConfigError(f"{source} is empty", action=form.action)
    if len(text) > MAX_CREDENTIAL_BYTES or not form.pattern.fullmatch(text):
        raise ConfigError(f"{source} is no {form.noun}", action=form.action)
    return text
