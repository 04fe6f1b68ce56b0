"""Directories that several clients of a process have open: who writes, who only reads, and who waits for whom."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import headrace
import pytest
from headrace.embedded import server as server_module
from headrace.embedded.appends import AppendQueue
from headrace.embedded.open_partition import DirectoryPartition
from headrace.embedded.opened import OpenDirectory
from headrace.embedded.server import CHANGING_CALLS, DirectoryServer, OpenMode, acquire, release
from headrace.log.errors import DirectoryInUseError
from headrace.log.os_filesystem import OsFileSystem
from headrace.wire.errors import Outcome, ShuttingDownError

WAIT = 30


@pytest.fixture
def events(tmp_path):
    """A closed directory with a topic of two records and a table."""
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks", partitions=1)
        log.admin.create_topic("users", config={"cleanup_policy": "compact", "table": "yes"})
        send(log, b"a", b"b")
    return path


def send(log, *values):
    with log.producer() as producer:
        for value in values:
            producer.send("clicks", value)


def values_of(address):
    with headrace.Reader("clicks", bootstrap_servers=address) as reader:
        return [record.value for record in reader]


def open_elsewhere(path):
    """Open a directory for writing as another process does."""
    OpenDirectory(str(path), creates=False).close()


def test_clients_that_only_read_leave_a_directory_to_a_writer(events):
    """The first call of one that changes something makes its process the writer."""
    address = f"dir:{events}"
    with (
        headrace.Consumer("clicks", bootstrap_servers=address, auto_offset_reset="earliest") as consumer,
        headrace.Admin(bootstrap_servers=address) as admin,
        headrace.Table("users", bootstrap_servers=address) as users,
    ):
        assert [record.value for record in consumer.poll(WAIT)] == [b"a", b"b"]
        assert users.get("u1") is None
        assert len(admin.list_topics()) == 2
        open_elsewhere(events)
        users.put("u1", {"name": "Ada"})
        with pytest.raises(DirectoryInUseError, match="writes to"):
            open_elsewhere(events)
        assert users.get("u1")["name"] == "Ada"
        admin.create_topic("views")
        with headrace.Producer(bootstrap_servers=address) as producer:
            producer.send("clicks", b"c")
        assert [record.value for record in consumer.poll(WAIT)] == [b"c"]
    open_elsewhere(events)


@pytest.mark.parametrize("stays_open", [True, False])
@pytest.mark.parametrize("step", ["is_directory", "list_directory", "exists", "open"])
def test_a_directory_that_another_process_makes_meanwhile(tmp_path, step, stays_open):
    """Two programs begin at once, with the same new directory: one has it, the other is told so, or has it next."""
    path = str(tmp_path / "events")
    (tmp_path / "events").mkdir()
    writers = []

    class SharedFileSystem(OsFileSystem):
        """Another process makes the directory around the first call of `step`."""

    def around(filesystem, *arguments, **options):
        opens_first = step == "open"
        found = None if opens_first else getattr(OsFileSystem, step)(filesystem, *arguments, **options)
        if not writers:
            writers.append(OpenDirectory(path, creates=True))
            if not stays_open:
                writers[0].close()
        return getattr(OsFileSystem, step)(filesystem, *arguments, **options) if opens_first else found

    setattr(SharedFileSystem, step, around)
    if stays_open:
        with pytest.raises(DirectoryInUseError, match="writes to"):
            OpenDirectory(path, creates=True, filesystem=SharedFileSystem())
        writers[0].close()
    else:
        opened = OpenDirectory(path, creates=True, filesystem=SharedFileSystem())
        assert opened.identity == writers[0].identity
        opened.close()


def test_a_client_that_changes_something_where_another_process_writes(events):
    """It is told which one; its reads continue."""
    with headrace.Admin(bootstrap_servers=f"dir:{events}") as admin:
        writer = OpenDirectory(str(events), creates=False)
        with pytest.raises(DirectoryInUseError, match=r"process .* writes to"):
            admin.create_topic("views")
        assert len(admin.list_topics()) == 2
        writer.close()
        admin.create_topic("views")
        assert len(admin.list_topics()) == 3


def test_a_reader_recovers_what_a_crash_has_left(events):
    """The bounds may be older than the logs then. Afterwards the reader does not keep others from writing."""
    older = (events / "bounds").read_bytes()
    with headrace.open(events) as log:
        send(log, b"c")
    (events / "bounds").write_bytes(older)
    (events / "clean").unlink()
    with headrace.Reader("clicks", bootstrap_servers=f"dir:{events}") as reader:
        open_elsewhere(events)
        assert [record.value for record in reader] == [b"a", b"b", b"c"]


def test_what_is_opened_only_to_read_changes_nothing_in_a_process_that_writes(events):
    """Another part of the program has it open for writing; its records are seen."""
    with headrace.open(events) as log, headrace.open(events, read_only=True) as reading:
        assert (log.is_read_only, reading.is_read_only) == (False, True)
        for change in (
            reading.producer,
            lambda: reading.admin.create_topic("views"),
            lambda: reading.admin.delete_topic("clicks"),
            lambda: reading.table("users").put("u1", {"name": "Ada"}),
            lambda: headrace.Producer(bootstrap_servers=reading.bootstrap_servers),
        ):
            with pytest.raises(DirectoryInUseError, match="only to read"):
                change()
        send(log, b"c")
        assert values_of(reading.bootstrap_servers) == [b"a", b"b", b"c"]
        assert log.topics() == reading.topics() == ["clicks", "users"]


def test_what_is_opened_only_to_read_does_not_keep_its_process_from_writing(events):
    with headrace.open(events, read_only=True) as reading:
        with headrace.open(events) as log:
            send(log, b"c")
        assert values_of(reading.bootstrap_servers) == [b"a", b"b", b"c"]


def test_calls_that_change_something_are_those_that_a_reader_refuses(events):
    """The others are answered by one that only reads."""
    reader = DirectoryServer(str(events), OpenMode.READ, creates=False)
    refused = set()
    for service, method in {*reader._handlers, *reader._polled}:
        try:
            reader.call(service, method, None)
        except DirectoryInUseError:
            refused.add((service, method))
        except (AttributeError, TypeError):
            pass  # There is no request.
    reader.close()
    assert refused == CHANGING_CALLS


def test_a_callback_opens_another_directory_while_its_own_is_closed(events, tmp_path, monkeypatch):
    """The close waits for the thread of the callback. Its own directory is refused to it."""
    added, closing, told = threading.Event(), threading.Event(), []
    flush, close = DirectoryPartition.flush_appended, AppendQueue.close

    def flush_later(partition):
        added.wait(WAIT)
        flush(partition)

    def say_and_close(queue):
        closing.set()
        close(queue)

    def note(_):
        told.append(closing.wait(WAIT))
        headrace.open(tmp_path / "audit").close()
        try:
            headrace.open(events)
        except ShuttingDownError:
            told.append("is being closed")

    monkeypatch.setattr(DirectoryPartition, "flush_appended", flush_later)
    producer = headrace.Producer(bootstrap_servers=f"dir:{events}")
    producer.send("clicks", b"c").add_done_callback(note)
    monkeypatch.setattr(AppendQueue, "close", say_and_close)
    added.set()
    closer = threading.Thread(target=producer.close, daemon=True)
    closer.start()
    closer.join(WAIT)
    assert not closer.is_alive()
    assert told == [True, "is being closed"]


@pytest.mark.parametrize("closes", [False, True])
def test_directories_that_close_at_once_do_not_wait_for_each_other(tmp_path, closes):
    """A callback of each opens, or closes, the other one: of two that open, one is refused."""
    paths = [str(tmp_path / name) for name in "ab"]
    servers = [acquire(path, OpenMode.WRITE, creates=True) for path in paths]
    entries = [server_module._registry.entries[path, True] for path in paths]
    others = [acquire(path, OpenMode.WRITE) for path in paths] if closes else []
    begun, ended, told = threading.Barrier(3), [threading.Event() for _ in paths], []

    def act(number):
        begun.wait(WAIT)
        if closes:
            release(others[1 - number])
        else:
            until(lambda: all(entry.is_closing for entry in entries))
            try:
                release(acquire(paths[1 - number], OpenMode.WRITE))
            except ShuttingDownError:
                told.append(number)
        ended[number].set()

    for number, server in enumerate(servers):
        server._appends._write = refuse
        server.produce(None, lambda _, error, number=number: act(number))
    closers = [threading.Thread(target=release, args=(server,), daemon=True) for server in servers]
    for closer in closers:
        closer.start()
        if closes:  # The callbacks have the last users.
            closer.join(WAIT)
    begun.wait(WAIT)
    for closer, event in zip(closers, ended, strict=True):
        assert event.wait(WAIT)
        closer.join(WAIT)
        assert not closer.is_alive()
    assert len(told) == (0 if closes else 1)
    until(lambda: not any((path, True) in server_module._registry.entries for path in paths))


def refuse(request):
    raise ShuttingDownError("refused", outcome=Outcome.NOT_APPLIED)


def until(holds):
    """Wait until something holds, which no event tells."""
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def test_a_directory_is_shared_while_another_one_is_opened(events, tmp_path, monkeypatch):
    """The recovery of the other one would block an event loop."""
    opening, opened = threading.Event(), threading.Event()

    class SlowDirectory(OpenDirectory):
        def __init__(self, *arguments, **options):
            opening.set()
            opened.wait(WAIT)
            super().__init__(*arguments, **options)

    with headrace.open(events), ThreadPoolExecutor(2) as threads:
        monkeypatch.setattr(server_module, "OpenDirectory", SlowDirectory)
        slow = threads.submit(acquire, tmp_path / "big", OpenMode.WRITE, creates=True)
        assert opening.wait(WAIT)
        try:
            release(threads.submit(acquire, events).result(WAIT))
        finally:
            opened.set()
        release(slow.result(WAIT))
