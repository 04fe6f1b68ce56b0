"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that is most similar to `name`, or `None`."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return matches[0] if matches else None
