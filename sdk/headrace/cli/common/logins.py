"""API keys that `headrace auth login` stores: a file for each address, which only its owner can read.

Commands name the file to the SDK and never read it. Addresses are those of `--bootstrap-servers`.
"""

import contextlib
import os
import secrets
from pathlib import Path
from urllib.parse import quote

import typer


def login_path(address: str) -> Path:
    """Return the path of the API key for an address, whether it exists or not."""
    return Path(typer.get_app_dir("headrace")) / "api-keys" / quote(address, safe="")


def find_login(bootstrap_servers: str) -> Path | None:
    """Return the file with the API key for the first of these addresses that has one, or `None`."""
    return next((path for path in map(login_path, _addresses(bootstrap_servers)) if path.is_file()), None)


def store_login(bootstrap_servers: str, api_key: str) -> Path:
    """Store an API key for all of these addresses; return the file of the first one."""
    paths = [login_path(address) for address in _addresses(bootstrap_servers)]
    for path in paths:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, api_key + "\n")
    return paths[0]


def remove_login(bootstrap_servers: str) -> list[str]:
    """Remove the API keys for these addresses; return those that had one."""
    removed = []
    for address in _addresses(bootstrap_servers):
        with contextlib.suppress(FileNotFoundError):
            login_path(address).unlink()
            removed.append(address)
    return removed


def _addresses(bootstrap_servers: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in bootstrap_servers.split(",") if part.strip()))


def _write(path: Path, text: str) -> None:
    """Replace a file by one of mode 0600, which has this mode before it has the content."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
