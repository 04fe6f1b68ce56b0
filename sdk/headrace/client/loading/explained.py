"""Errors of a load, with or without Spark, with their next step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.client.base.errors import LogTruncationError, TopicRecreatedError
from headrace.client.loading.tables.errors import LoadError, is_full
from headrace.wire.errors import CorruptBatchError, HeadraceError, Outcome


@contextmanager
def explained(to: str) -> Iterator[None]:
    """Raise errors with the next step of a load."""
    try:
        yield
    except CorruptBatchError as error:
        error.action = "Run it with --skip-corrupt to continue behind it, or restore the partition."
        raise
    except TopicRecreatedError as error:
        raise LoadError(f"{error.message}; nothing of the new topic was loaded. Load it into another table") from error
    except LogTruncationError as error:
        raise LoadError(f"{error.message}; the table may have them. Load into another table") from error
    except HeadraceError:
        raise
    except Exception as error:
        if is_full(error):
            raise LoadError(
                f"no space is left at {to}: nothing of this commit is in the table; free some and run the load again, "
                "which continues"
            ) from error
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:
            raise LoadError(
                f"{to}: a value of a column of --partition-by is too long for the name of a directory "
                f"({error!s:.300}); nothing was committed. Partition by another column, into another table"
            ) from error
        if type(error).__module__.partition(".")[0] in {
            "deltalake",
            "pyiceberg",
            "pyarrow",
            "sqlalchemy",
        } or isinstance(error, OSError):
            said = " ".join(str(error).split())  # The answer to a commit may be what was lost.
            first = "choose another place, or allow to write there, and " if _is_refused(error) else ""
            raise LoadError(f"{to}: {said}; {first}run the load again, which continues", Outcome.UNKNOWN) from error
        raise


def _is_refused(error: Exception) -> bool:
    """Return whether nothing can be written there until the place, or the rights to it, change."""
    return isinstance(error, OSError) and error.errno in (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
