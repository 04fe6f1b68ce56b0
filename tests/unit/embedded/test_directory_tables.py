"""Tables of a directory: what is read of rows while they change, are compacted, and are made anew."""

from __future__ import annotations

import queue
import threading
from datetime import timedelta

import headrace
import headrace.client.table.table
import pytest

from tests.integration.replicated import until

WAIT = 30
TABLE = {"cleanup_policy": "compact", "table": "yes"}


def test_a_table_keeps_its_number_of_partitions(tmp_path):
    """Otherwise rows are searched in another partition than they were written to."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE)
        with log.table("users") as users:
            for n in range(8):
                users.put(f"u{n}", {"a": "1"}, if_version=headrace.ABSENT)
        for validate_only in (True, False):
            with pytest.raises(headrace.InvalidPartitionsError, match="a row's partition follows from it"):
                log.admin.create_partitions("users", 2, validate_only=validate_only)
        with log.table("users") as users:
            assert None not in users.get_many([f"u{n}" for n in range(8)])


def test_rows_of_more_bytes_than_an_answer_are_whole(tmp_path):
    """An answer ends between two rows, and a row that alone is larger is read to its end."""
    with headrace.open(tmp_path / "events") as log:
        log.admin.create_topic("users", 1, config=TABLE | {"durability": "async"})
        with log.table("users") as users:
            columns = {f"c{n}": "x" * 7_000 for n in range(4)}
            users.put_many((f"r{n:03}", columns) for n in range(250))
            for n in range(5):
                users.put("s", {f"c{n}": "y" * 900_000})
            sizes = {f"r{n:03}".encode(): 4 for n in range(250)} | {b"s": 5}
            assert {row.key: len(row) for row in users.scan()} == sizes
            assert {row.key: len(row) for row in users.get_many(sizes)} == sizes
            assert (len(users.get("s")), users.get("s").next_column) == (5, None)
            found = users.to_arrow()
            assert [found[f"c{n}"].null_count for n in range(5)] == [0, 0, 0, 0, 250]


def watched(table, key, monkeypatch):
    """Return a function that waits for the next row that `watch` yields."""
    monkeypatch.setattr(headrace.client.table.table, "WATCH_S", 0.2)
    rows = table.watch(key)

    def following():
        seen: queue.Queue = queue.Queue()
        threading.Thread(target=lambda: seen.put(next(rows)), daemon=True).start()
        return seen.get(timeout=WAIT)

    return following


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_watched_row_is_seen_in_a_table_that_was_made_anew(tmp_path, monkeypatch, partitions):
    """Offsets begin at 0 there, and versions may be those of the row that it was."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users, log.table("users") as writer:
        log.admin.create_topic("users", 1, config=TABLE)
        writer.put("k", {"a": "old life"})
        for n in range(20):
            writer.put(f"other-{n}", {"a": str(n)})
        following = watched(users, "k", monkeypatch)
        assert dict(following()) == {"a": "old life"}
        log.admin.delete_topic("users")
        log.admin.create_topic("users", partitions, config=TABLE)
        with log.table("users") as anew:
            anew.put("k", {"a": "new life"})
            assert dict(following()) == {"a": "new life"}
            anew.delete("k")
            assert following() is None


def test_the_end_of_a_column_is_seen_with_the_next_write(tmp_path, monkeypatch):
    """Also of one that is not the newest of the row, whose version it leaves as it is."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users, log.table("users") as writer:
        log.admin.create_topic("users", 1, config=TABLE)
        writer.put("k", {"b": "1"}, ttl=timedelta(milliseconds=400))
        version = writer.put("k", {"a": "1"})
        following = watched(users, "k", monkeypatch)
        assert dict(following()) == {"a": "1", "b": "1"}
        until(lambda: len(writer.get("k")) == 1, "the end of b")
        writer.put("other", {"a": "1"})
        row = following()
        assert (dict(row), row.version) == ({"a": "1"}, version)


def test_a_text_is_no_list_of_keys_or_names(tmp_path):
    """Its characters are not taken for keys: rows u, 1 and 7 are others than u17."""
    with headrace.open(tmp_path / "events") as log, log.table("users") as users:
        log.admin.create_topic("users", 1, config=TABLE)
        for key in ("u", "1", "7", "u17"):
            users.put(key, {"p": "1", "l": "2", "plan": "3"})
        for call in (
            lambda: next(users.purge("u17")),
            lambda: next(users.purge(b"u17")),
            lambda: users.get_many("u17"),
            lambda: users.delete("u17", "plan"),
            lambda: users.get("u17", "plan"),
            lambda: next(users.scan(columns="plan")),
            lambda: users.to_arrow(columns="plan"),
            lambda: log.admin.delete_groups("u17"),
        ):
            with pytest.raises(headrace.ConfigError, match=r"is one (str|bytes)"):
                call()
        assert {row.key: len(row) for row in users.scan()} == dict.fromkeys((b"1", b"7", b"u", b"u17"), 3)
