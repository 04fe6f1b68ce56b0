"""Tests of the SDK on a directory in place of a cluster: `make test-directory`.

`LocalCluster` is then a directory, and the tests of the SDK run on it unchanged, but for those of `EXCLUDED`.
"""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
from headrace.embedded.server import OpenMode, acquire, release

IS_ON = bool(os.environ.get("HEADRACE_TEST_DIRECTORY"))

SUITES = (
    "test_compaction.py",
    "test_groups_sdk.py",
    "test_sdk_aio.py",
    "test_sdk_producer.py",
    "test_sql.py",
    "test_tables.py",
    "test_topic_recreated.py",
    "test_typed_topics.py",
)
"""Modules of tests of the SDK."""
_NO_PROCESS = "A directory has no broker, coordinator or etcd that could be killed, paused or restarted."
_NO_REPLICA = "A directory keeps one copy."
_ONE_WRITER = "Another process writes, which a directory does not allow."
_NO_GRPC = "The test calls a broker over gRPC itself."
_NO_METRICS = "The test reads the metrics of brokers."
_RETRIES = "A directory keeps for 15 minutes what a producer may send again; the test sets the brokers' limit to 0."
EXCLUDED: dict[str, str] = {
    "test_a_broker_killed_while_it_takes_records_loses_and_doubles_nothing": _NO_PROCESS,
    "test_a_restarted_broker_has_the_table_again": _NO_PROCESS,
    "test_nothing_acknowledged_is_lost_when_leaders_are_killed": _NO_PROCESS,
    "test_nothing_put_at_once_is_lost_when_leaders_are_killed": _NO_PROCESS,
    "test_while_etcd_is_paused_members_keep_reading": _NO_PROCESS,
    "test_a_coordinator_is_killed_and_members_go_on": _NO_PROCESS,
    "test_every_client_reads_a_compacted_topic": _RETRIES,
    "test_a_replica_that_was_away_has_the_newest_records": _NO_REPLICA,
    "test_a_new_replica_copies_the_compacted_log": _NO_REPLICA,
    "test_a_member_that_is_killed_is_replaced": _ONE_WRITER,
    "test_a_record_that_ends_every_process_goes_to_the_dead_letters": _ONE_WRITER,
    "test_a_handler_that_ends_its_process_leaves_its_record_to_the_next_owner": _ONE_WRITER,
    "test_the_command_line_reads_and_writes_rows": _ONE_WRITER,
    "test_rows_on_the_command_line": _ONE_WRITER,
    "test_what_a_broker_refuses": _NO_GRPC,
    "test_other_languages_read_json": _NO_GRPC,
    "test_columns_and_ranges_are_selected": _NO_METRICS,
    "test_only_what_is_named_is_read": _NO_METRICS,
}
"""Tests by name, with the reason."""


class LocalDirectory:
    """Directory in place of a `LocalCluster`: its only address is the directory, which is open until the end."""

    def __init__(self, spec: Any = None, **_: Any) -> None:
        self.spec = spec
        self.parts: tuple[Any, ...] = ()
        self.brokers: tuple[Any, ...] = ()
        self.etcd = SimpleNamespace(resume=lambda: None)

    @property
    def bootstrap_servers(self) -> str:
        return f"dir:{self.path}"

    def __enter__(self) -> LocalDirectory:
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-directory-")
        self.path = self._temporary.name
        self._server = acquire(self.path, OpenMode.WRITE, creates=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        release(self._server)
        self._temporary.cleanup()


def exclude(items: list[pytest.Item]) -> None:
    """Skip the tests that a directory cannot pass."""
    for item in items:
        reason = EXCLUDED.get(item.nodeid.rpartition("::")[2].partition("[")[0].partition("@")[0])
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


if __name__ == "__main__":
    print(*(f"tests/integration/{name}" for name in SUITES))
