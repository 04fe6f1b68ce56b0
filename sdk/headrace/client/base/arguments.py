"""Arguments of the application that are easily given in another form."""

from collections.abc import Iterable
from typing import TypeVar

from headrace.client.base.errors import ConfigError

Element = TypeVar("Element")


def listed(name: str, given: Iterable[Element]) -> list[Element]:
    """Return the elements of an argument.

    Raises:
        ConfigError: If it is one text, whose characters would be the elements, or bytes.
    """
    if isinstance(given, str | bytes):
        raise ConfigError(f"{name} is one {type(given).__name__}", action=f"Pass a list: [{given!r}].")
    return list(given)
