"""Errors of tables. They end the load or the job; the message has the next step."""

import errno

from headrace.wire.errors import HeadraceError, Outcome


class LoadError(HeadraceError):
    """The table cannot be read or written; nothing was committed, unless the outcome is unknown."""

    def __init__(self, message: str, outcome: Outcome = Outcome.NOT_APPLIED) -> None:
        super().__init__(message, outcome=outcome, action="")


class TableBusyError(LoadError):
    """Another job writes to the table. Retry after it has ended."""


class ConcurrentCommitError(LoadError):
    """Another job committed meanwhile, in spite of the lock. Run the job again."""


class OtherSourceError(LoadError):
    """The table has the records of another source. Use another directory."""


def is_full(error: BaseException) -> bool:
    """Return whether an error, or what caused it, means that there is no space left."""
    found: BaseException | None = error
    while found is not None:
        if getattr(found, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or "No space left" in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False
