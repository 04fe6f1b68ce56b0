"""Name of a call and number of its try, in gRPC's metadata.

A client that gets no answer from a coordinator repeats an idempotent call at another one. The first coordinator, which
was paused or waits for etcd, may still apply the call, even after the second one has confirmed it and another client
has changed the same again. Therefore a coordinator that gets a repeated call prevents its earlier tries from writing
(docs/decisions/0020-use-short-deadlines-for-etcd.md). A client that sends no such metadata does not repeat calls by
itself, or takes this risk.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

CALL_TRY_KEY = "headrace-try"
"""Metadata key; the value is the call's id of 16 hexadecimal digits, a hyphen, and the number of the try."""
MAX_EARLIER_TRIES = 9
"""So few fences does a call cost at most."""
_PATTERN = re.compile(rf"([0-9a-f]{{16}})-([0-{MAX_EARLIER_TRIES}])", re.ASCII)


class CallTry(NamedTuple):
    """One try of a call."""

    call_id: str
    number: int
    """How many earlier tries may have been applied, at most `MAX_EARLIER_TRIES`."""

    @staticmethod
    def first() -> CallTry:
        """Return the first try of a new call."""
        return CallTry(secrets.token_hex(8), 0)

    @staticmethod
    def parse(text: str) -> CallTry | None:
        """Return the try that a value of `CALL_TRY_KEY` names; `None` if it is malformed."""
        found = _PATTERN.fullmatch(text)
        return CallTry(found[1], int(found[2])) if found else None

    def next(self) -> CallTry:
        """Return the try after this one, which may have been applied."""
        return self._replace(number=min(self.number + 1, MAX_EARLIER_TRIES))

    def __str__(self) -> str:
        """Return the value of `CALL_TRY_KEY`."""
        return f"{self.call_id}-{self.number}"
