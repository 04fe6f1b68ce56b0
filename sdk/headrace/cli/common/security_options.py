"""Options of all commands for TLS and credentials, with the names of the SDK's settings."""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

SecurityProtocol = Annotated[
    str,
    typer.Option(
        "--security-protocol",
        envvar="HEADRACE_SECURITY_PROTOCOL",
        metavar="PLAINTEXT|SSL",
        help="`SSL`: require TLS on every connection.",
    ),
]
SslCafile = Annotated[
    str,
    typer.Option(
        "--ssl-cafile",
        envvar="HEADRACE_SSL_CAFILE",
        metavar="FILE",
        help="CA certificates that the servers' certificates are verified with, PEM.",
    ),
]
SslCertfile = Annotated[
    str,
    typer.Option(
        "--ssl-certfile",
        envvar="HEADRACE_SSL_CERTFILE",
        metavar="FILE",
        help="Client certificate for mutual TLS, PEM.",
    ),
]
SslKeyfile = Annotated[
    str,
    typer.Option(
        "--ssl-keyfile",
        envvar="HEADRACE_SSL_KEYFILE",
        metavar="FILE",
        help="Private key of the client certificate, PEM.",
    ),
]
SslServerName = Annotated[
    str,
    typer.Option(
        "--ssl-server-name",
        envvar="HEADRACE_SSL_SERVER_NAME",
        metavar="NAME",
        help="Host name expected in the servers' certificates; the default is the host of each address.",
    ),
]
ApiKeyFile = Annotated[
    str,
    typer.Option(
        "--api-key-file",
        envvar="HEADRACE_API_KEY_FILE",
        metavar="FILE",
        help="File with the API key of the user; the default is that of `headrace auth login`.",
    ),
]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar="HEADRACE_TOKEN_FILE",
        metavar="FILE",
        help="File with a JSON Web Token of the user, instead of an API key.",
    ),
]
AllowPlaintextCredentials = Annotated[
    bool,
    typer.Option(
        "--allow-plaintext-credentials",
        envvar="HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS",
        help="Send credentials without TLS to other machines, too.",
    ),
]

SECURITY: list[tuple[str, Any, Any]] = [
    ("security_protocol", SecurityProtocol, ""),
    ("ssl_cafile", SslCafile, ""),
    ("ssl_certfile", SslCertfile, ""),
    ("ssl_keyfile", SslKeyfile, ""),
    ("ssl_server_name", SslServerName, ""),
    ("api_key_file", ApiKeyFile, ""),
    ("token_file", TokenFile, ""),
    ("allow_plaintext_credentials", AllowPlaintextCredentials, False),
]
"""Name, type and default of each parameter."""
CREDENTIALS = ("api_key", "api_key_file", "token_file")


def given_security(ctx: typer.Context, taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the options or the environment have. A key is not an option, as `ps` shows these.

    A credential on the command line replaces those in the environment.
    """
    given = {name: taken[name] for name, _, _ in SECURITY if taken.get(name)}
    if "api_key_file" not in taken:
        return given  # A command that does not connect.
    typed = [name for name in CREDENTIALS if name in given and _is_typed(ctx, name)]
    if typed:
        return {name: value for name, value in given.items() if name in typed or name not in CREDENTIALS}
    api_key = os.environ.get("HEADRACE_API_KEY")
    return {**given, "api_key": api_key} if api_key else given


def _is_typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
