"""`headrace.aio.open`: as `headrace.open`, with the asyncio classes. One event loop."""

import asyncio
import os
import threading
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from headrace.client.admin.admin_async import AsyncAdmin
from headrace.client.base.settings_types import ConsumerSettings, ProducerSettings, TableSettings
from headrace.client.consumer.consumer_async import AsyncConsumer
from headrace.client.consumer.reader_async import AsyncReader
from headrace.client.opened.directory import LogDirectory
from headrace.client.producer.producer_async import Producer
from headrace.client.table.table_async import AsyncTable


class AsyncLogDirectory:
    """Open directory, as `headrace.LogDirectory`."""

    def __init__(self, directory: LogDirectory) -> None:
        """Call `open`."""
        self._directory = directory
        self._admin: AsyncAdmin | None = None

    @property
    def path(self) -> str:
        """Absolute path."""
        return self._directory.path

    @property
    def bootstrap_servers(self) -> str:
        """What clients that are made elsewhere in this process take as `bootstrap_servers`."""
        return self._directory.bootstrap_servers

    @property
    def is_read_only(self) -> bool:
        """Whether this process only reads it."""
        return self._directory.is_read_only

    @property
    def admin(self) -> AsyncAdmin:
        """Client for topics, groups and offsets; closed with the directory."""
        if self._admin is None:
            self._admin = AsyncAdmin(**self._directory._settings({}))
        return self._admin

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return self._directory.topics()

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """Return a new producer."""
        return Producer(**self._directory._settings(settings))

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettings]) -> AsyncConsumer:
        """Return a new consumer."""
        return AsyncConsumer(*topics, **self._directory._settings(settings))

    def reader(self, topic: str, **arguments: Any) -> AsyncReader:
        """Return a new reader."""
        return AsyncReader(topic, **self._directory._settings(arguments))

    def table(self, name: str, **settings: Unpack[TableSettings]) -> AsyncTable:
        """Return a new client of a table."""
        return AsyncTable(name, **self._directory._settings(settings))

    async def close(self) -> None:
        """Close the directory once its other clients are closed; raises as the blocking class.

        It is closed as well if this is cancelled.
        """
        try:
            if self._admin is not None:
                await self._admin.close()
        finally:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._directory.close))

    async def __aenter__(self) -> "AsyncLogDirectory":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._directory)[1:]}"

    def _repr_html_(self) -> str | None:
        return self._directory._repr_html_()


async def open(path: str | os.PathLike[str], *, read_only: bool = False) -> AsyncLogDirectory:
    """Open a directory with topics, as `headrace.open`. If this is cancelled, it is closed again once it is open."""
    begin = partial(LogDirectory, path, read_only=read_only)
    opening = asyncio.get_running_loop().run_in_executor(None, begin)
    try:
        return AsyncLogDirectory(await asyncio.shield(opening))
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: "asyncio.Future[LogDirectory]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="headrace-close").start()  # Its fsyncs take long.
