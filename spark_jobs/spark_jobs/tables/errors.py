"""What can be wrong with a table. The job ends; the message says what to do."""


class TableError(Exception):
    """A table cannot be read or written; nothing was committed."""


class TableBusyError(TableError):
    """Another job writes to the table now: try again when it has ended."""


class ConcurrentCommitError(TableError):
    """Another job has committed meanwhile, past a lock that did not hold it: run the job again."""


class OtherSourceError(TableError):
    """The table holds the records of something else: give another directory."""
