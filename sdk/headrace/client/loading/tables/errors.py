"""Errors of tables. They end the job; the message has the next step."""


class TableError(Exception):
    """The table cannot be read or written; nothing was committed."""


class TableBusyError(TableError):
    """Another job writes to the table. Retry after it has ended."""


class ConcurrentCommitError(TableError):
    """Another job committed meanwhile, in spite of the lock. Run the job again."""


class OtherSourceError(TableError):
    """The table has the records of another source. Use another directory."""
