"""`headrace auth login` and `logout`: an API key that later commands use."""

import sys
from typing import Any

from headrace.cli.common.logins import remove_login, store_login
from headrace.cli.common.rendering import JsonValue
from headrace.cli.common.security_options import CREDENTIALS
from headrace.cli.common.session import Session, UsageProblem, command


@command()
def login(session: Session) -> None:
    """Store an API key for the cluster, so that later commands use it.

    The key is read from --api-key-file, else from stdin, which a terminal does not show. It is stored only if the
    cluster accepts it: in a file that only its owner can read, for the addresses of --bootstrap-servers.

    \b
    Examples:
      headrace auth login
      headrace auth login --api-key-file billing.key --bootstrap-servers coordinator-1.example.org:7170
    """
    settings = session.settings()
    api_key = _api_key(session, settings)
    settings = {name: value for name, value in settings.items() if name not in CREDENTIALS}
    with session.clients.admin(**settings, api_key=api_key) as admin:
        caller = admin.who_am_i()
    path = store_login(session.bootstrap_servers, api_key)
    document: dict[str, JsonValue] = {
        "user": caller.user or None,
        "bootstrap_servers": session.bootstrap_servers,
        "path": str(path),
    }
    session.show_change(document, f"logged in to {session.bootstrap_servers} as {caller.user or 'anonymous'}")


@command()
def logout(session: Session) -> None:
    """Remove the API key that `login` stored for the cluster. The key itself stays valid; delete it to end it.

    \b
    Examples:
      headrace auth logout
      headrace auth logout --bootstrap-servers coordinator-1.example.org:7170
    """
    removed = remove_login(session.bootstrap_servers)
    sentence = f"logged out of {', '.join(removed)}" if removed else "no login is stored for these addresses"
    session.show_change({"removed": list(removed)}, sentence)


def _api_key(session: Session, settings: dict[str, Any]) -> str:
    if "token_file" in session.security:
        raise UsageProblem("login stores API keys; give --token-file to each command instead")
    if "api_key" in session.security:
        return str(session.security["api_key"])
    if "api_key_file" in session.security:
        from headrace.client.base.config import AdminConfig, build
        from headrace.client.base.credentials import read_api_key

        return read_api_key(build(AdminConfig, settings))
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("API key: ", stream=sys.stderr).strip()
    text = sys.stdin.readline().strip()
    if not text:
        raise UsageProblem("no API key is on stdin; pipe it in, or give --api-key-file")
    return text
