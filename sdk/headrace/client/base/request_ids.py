"""The name that every operation has in the logs of clients, coordinators and brokers, and in the texts of errors.

An operation is what `execute` runs (all its tries, and what it looks up on the way), or one Produce or Fetch. Its calls
carry the name as metadata; servers write it into their logs and return it with what they refuse. Any thread.
"""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from contextvars import ContextVar

from headrace.wire.errors import REQUEST_ID_KEY, HeadraceError

Metadata = tuple[tuple[str, str], ...]


class _Names:
    """One process's: a part drawn at random, and a number."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a new process, so that a fork uses no name of its parent."""
        self.prefix = secrets.token_hex(4)
        self.numbers = itertools.count(1)


class _Operation:
    """What a thread or a task is at; named when its first call leaves."""

    __slots__ = ("request_id",)

    def __init__(self) -> None:
        self.request_id = ""


_names = _Names()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_names.renew)
_operation: ContextVar[_Operation | None] = ContextVar("headrace_operation", default=None)


def new_request_id() -> str:
    """A name that nothing else has, as `5f0c93ab-2f`."""
    return f"{_names.prefix}-{next(_names.numbers):x}"


@contextlib.contextmanager
def request_id_scope() -> Iterator[None]:
    """Everything called within belongs together; inside another operation it is a part of that one.

    An error that it raises after a call has left carries the name.
    """
    outer = _operation.get()
    found = _Operation() if outer is None else outer
    token = _operation.set(found)
    try:
        yield
    except HeadraceError as error:
        error.request_id = error.request_id or found.request_id
        raise
    finally:
        _operation.reset(token)


def metadata_of(request_id: str) -> Metadata:
    """What a call of that name carries."""
    return ((REQUEST_ID_KEY, request_id),)


def operation_metadata() -> Metadata:
    """What a call of the operation under way carries; outside of any it is one by itself."""
    found = _operation.get()
    if found is None:
        return metadata_of(new_request_id())
    if not found.request_id:
        found.request_id = new_request_id()
    return metadata_of(found.request_id)
