"""What goes wrong inside a directory that is open: the caller is told, and the next call works."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import headrace
import pytest

WAIT = 30
CLICKS = b"c" * 16


def test_of_topics_of_one_name_created_at_once_one_is_there(tmp_path):
    with headrace.open(tmp_path / "events") as log:
        ready = threading.Barrier(8)

        def create(_: int) -> str | None:
            ready.wait(WAIT)
            try:
                log.admin.create_topic("clicks")
            except headrace.TopicAlreadyExistsError:
                return None
            return "created"

        for _ in range(20):
            with ThreadPoolExecutor(8) as threads:
                assert sorted(filter(None, threads.map(create, range(8)))) == ["created"]
            log.admin.delete_topic("clicks")


def test_a_directory_whose_groups_cannot_be_read_can_be_opened_once_they_can(tmp_path):
    path = tmp_path / "events"
    with headrace.open(path) as log:
        log.admin.create_topic("clicks")
    (path / "groups").mkdir(exist_ok=True)
    (path / "groups" / "g").write_bytes(b"torn")
    with pytest.raises(headrace.WrongDirectoryError, match="corrupt"):
        headrace.open(path)
    (path / "groups" / "g").unlink()
    with headrace.open(path) as log:
        assert log.topics() == ["clicks"]
