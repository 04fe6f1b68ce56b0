"""What a caller sends with a call besides its request: gRPC's metadata, or what other protocols have in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def texts_of(context: Any, key: str) -> Iterator[str]:
    """Yield the texts under a key in the metadata of a call; binary values are none."""
    for name, value in context.invocation_metadata() or ():
        if name == key and isinstance(value, str):
            yield value
