"""`headrace.open`: topics in a directory, without a server, by the same classes as with a cluster.

with headrace.open("events") as log:
    log.admin.create_topic("clicks")
    with log.producer() as producer:
        producer.send("clicks", b"hello")
    with log.reader("clicks") as reader:
        for record in reader:
            print(record.value)
"""

import os
import threading
from typing import TYPE_CHECKING, Any

from headrace.client.base.config import DIRECTORY_PREFIX, DIRECTORY_READ_ONLY
from headrace.client.base.errors import ClosedError
from headrace.client.base.interrupts import DeferredKeyboardInterrupt
from headrace.embedded.server import OpenMode, acquire, release

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Unpack

    from headrace.client.admin.admin import Admin
    from headrace.client.base.settings_types import ConsumerSettings, ProducerSettings, TableSettings
    from headrace.client.consumer.consumer import Consumer
    from headrace.client.consumer.reader import Reader
    from headrace.client.producer.producer import Producer
    from headrace.client.sql.query import SqlResult
    from headrace.client.table.table import Table
    from headrace.embedded.catalogue import DirectoryTopic


class LogDirectory:
    """Open directory. It stays open until it and all of its clients are closed. Any thread.

    A client with `bootstrap_servers="dir:PATH"`, also without this class, shares it with the others of the process.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        """Open a directory; see `open`."""
        self._server = acquire(path, OpenMode.READ if read_only else OpenMode.WRITE, creates=not read_only)
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._is_closed = False

    @property
    def path(self) -> str:
        """Absolute path."""
        return self._server.path

    @property
    def bootstrap_servers(self) -> str:
        """What clients that are made elsewhere in this process take as `bootstrap_servers`."""
        return f"{DIRECTORY_PREFIX}{self.path}{DIRECTORY_READ_ONLY if self.is_read_only else ''}"

    @property
    def is_read_only(self) -> bool:
        """Whether nothing is changed by this object and its clients."""
        return not self._server.is_writer

    @property
    def admin(self) -> "Admin":
        """Client for topics, groups and offsets; closed with the directory."""
        from headrace.client.admin.admin import Admin

        with self._lock:
            self._check_open()
            if self._admin is None:
                self._admin = Admin(**self._settings({}))
            return self._admin

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return sorted(topic.name for topic in self._server.directory.all_topics())

    def producer(self, **settings: "Unpack[ProducerSettings]") -> "Producer":
        """Return a new producer; see `Producer`."""
        from headrace.client.producer.producer import Producer

        return Producer(**self._settings(settings))

    def consumer(self, *topics: str, **settings: "Unpack[ConsumerSettings]") -> "Consumer":
        """Return a new consumer; see `Consumer`. The members of a group are consumers of this process."""
        from headrace.client.consumer.consumer import Consumer

        return Consumer(*topics, **self._settings(settings))

    def reader(self, topic: str, **arguments: Any) -> "Reader":
        """Return a new reader, with the arguments of `Reader`."""
        from headrace.client.consumer.reader import Reader

        return Reader(topic, **self._settings(arguments))

    def table(self, name: str, **settings: "Unpack[TableSettings]") -> "Table":
        """Return a new client of a table; see `Table`."""
        from headrace.client.table.table import Table

        return Table(name, **self._settings(settings))

    def sql(self, query: str, **arguments: Any) -> "SqlResult":
        """Run a query over the topics, with the arguments of `sql`."""
        from headrace.client.sql.query import sql

        return sql(query, **self._settings(arguments))

    def close(self) -> None:
        """Close the directory once its other clients are closed. Calling it again does nothing.

        Ctrl-C meanwhile takes effect afterwards: a directory that is closed in part could not be opened again.

        Raises:
            StorageFullError, StorageOfflineError: If what was appended cannot be made durable.
        """
        with DeferredKeyboardInterrupt():
            with self._lock:
                if self._is_closed:
                    return
                self._is_closed = True
                admin = self._admin
            if admin is not None:
                admin.close()
            release(self._server)

    def __enter__(self) -> "LogDirectory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = "closed" if self._is_closed else "read only" if self.is_read_only else "open"
        return f"<LogDirectory {self.path} {mode}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the topics; `None` once it is closed."""
        if self._is_closed:
            return None
        from headrace.display.html_tables import MAX_TOPICS, count_text, html_table

        topics = sorted(self._server.directory.all_topics(), key=lambda topic: topic.name)
        mode = "read only" if self.is_read_only else "open"
        caption = f"{count_text(len(topics), 'topic', MAX_TOPICS)} in {self.path}, {mode}"
        lines = map(self._described, topics)
        return html_table(("topic", "kind", "partitions", "offsets"), lines, caption, most=MAX_TOPICS)

    def _described(self, topic: "DirectoryTopic") -> tuple[str, str, int, int]:
        partitions = [self._server.directory.readable(topic, number) for number in range(topic.partitions)]
        offsets = sum(each.visible_end - each.log_start_offset for each in partitions)
        kind = "table" if topic.config.is_table else "typed" if topic.config.columns else "records"
        return topic.name, f"{kind}, a copy" if topic.origin else kind, topic.partitions, offsets

    def _settings(self, given: Any) -> Any:
        self._check_open()
        return {**given, "bootstrap_servers": self.bootstrap_servers}

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("LogDirectory")


def open(path: str | os.PathLike[str], *, read_only: bool = False) -> "LogDirectory":
    """Open a directory with topics; make it if there is none. No server is needed.

    One process writes to a directory. Any number of others may read it meanwhile, with `read_only`; they see records as
    consumers of a cluster do, once they are durable by the topic's setting.

    Args:
        path: of the directory.
        read_only: change nothing, and allow another process to write, or another part of this one.

    Raises:
        DirectoryInUseError: If another process writes to it.
        WrongDirectoryError: If it holds other files or a broker's data, or was written by a newer release.
        StorageFullError, StorageOfflineError, CorruptLogError: If its files cannot be used.
    """
    return LogDirectory(path, read_only=read_only)
