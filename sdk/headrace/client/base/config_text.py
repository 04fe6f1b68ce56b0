"""Texts for errors of settings."""

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a similar name is known, else an empty string."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
