"""Option of the schema registry, and its client."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.session import Session

if TYPE_CHECKING:
    from headrace.client.schemas.registry import SchemaRegistry

Url = Annotated[
    str,
    typer.Option(
        "--registry",
        envvar="HEADRACE_SCHEMA_REGISTRY_URL",
        metavar="URL",
        help="URL of the schema registry; several are separated by commas.",
    ),
]
DEFAULT_URL = "http://localhost:7370"


def open_registry(session: Session, url: str) -> "SchemaRegistry":
    """Return a client of the registry with the settings of the command."""
    from headrace.client.schemas.registry import SchemaRegistry

    return SchemaRegistry(url, **session.settings())
