"""Tests of the SDK on a directory in place of a cluster: `make test-directory`.

`LocalCluster` is then a directory, and the tests of the SDK run on it unchanged, but for those of `EXCLUDED`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
from headrace.cli.main import app
from headrace.embedded import open_partition, opened
from headrace.embedded.server import OpenMode, acquire, release
from headrace.v1 import broker_pb2, groups_pb2
from headrace.wire.crc import ReadableBuffer
from headrace.wire.errors import HeadraceError
from headrace.wire.zero_copy import SplicedMessage
from typer.testing import CliRunner

IS_ON = bool(os.environ.get("HEADRACE_TEST_DIRECTORY"))

SUITES = (
    "integration/test_cli_groups.py",
    "integration/test_compaction.py",
    "integration/test_groups_sdk.py",
    "integration/test_quickstart.py",
    "integration/test_sdk_aio.py",
    "integration/test_sdk_examples.py",
    "integration/test_sdk_metrics.py",
    "integration/test_sdk_producer.py",
    "integration/test_sql.py",
    "integration/test_tables.py",
    "integration/test_topic_recreated.py",
    "integration/test_typed_topics.py",
    "paper/test_paper_groups.py",
)
"""Modules of tests of the SDK."""
_NO_PROCESS = "A directory has no coordinator and no etcd."
_NO_REPLICA = "A directory keeps one copy."
_NO_GRPC = "Records as JSON objects are for clients without the SDK, over gRPC."
EXCLUDED: dict[str, str] = {
    "test_while_etcd_is_paused_members_keep_reading": _NO_PROCESS,
    "test_a_coordinator_is_killed_and_members_go_on": _NO_PROCESS,
    "test_a_replica_that_was_away_has_the_newest_records": _NO_REPLICA,
    "test_a_new_replica_copies_the_compacted_log": _NO_REPLICA,
    "test_a_compacted_segment_that_rots_is_copied_anew": _NO_REPLICA,
    "test_levels_of_the_guide_keep_their_promises": _NO_REPLICA,
    "test_other_languages_read_json": _NO_GRPC,
}
"""Tests by name, with the reason."""


class LocalDirectory:
    """Directory in place of a `LocalCluster`: its only address is the directory, which is open until the end.

    Of the brokers' settings, it takes those of compaction and of producers that send again.
    """

    def __init__(self, spec: Any = None, **_: Any) -> None:
        self.spec = spec
        self.fetched_bytes = 0
        self.parts: tuple[Any, ...] = ()
        self.brokers: tuple[Any, ...] = ()
        self.etcd = SimpleNamespace(resume=lambda: None)

    @property
    def bootstrap_servers(self) -> str:
        return f"dir:{self.path}"

    def __enter__(self) -> LocalDirectory:
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-directory-")
        self.path = self._temporary.name
        self._patched = pytest.MonkeyPatch()
        settings = dict(getattr(self.spec, "broker_settings", None) or {})
        if (window_ms := settings.get("producer_retry_window_ms")) is not None:
            limits = dataclasses.replace(open_partition.LIMITS, producer_retry_window_ms=int(window_ms))
            self._patched.setattr(open_partition, "LIMITS", limits)
        if (interval_ms := settings.get("compaction_interval_ms")) is not None:
            # Retention, too, closes active segments that are old enough to be compacted, as maintenance of a broker.
            for name in ("CHECKPOINT_SECONDS", "COMPACTION_SECONDS", "IDLE_SECONDS", "RETENTION_SECONDS"):
                self._patched.setattr(opened, name, int(interval_ms) / 1_000)
        self.open()
        return self

    def open(self) -> None:
        """Open the directory in this process."""
        self._server = acquire(self.path, OpenMode.WRITE, creates=True)
        fetch = self._server._polled["broker", "FetchZeroCopy"]
        self._server._polled["broker", "FetchZeroCopy"] = lambda request: self._counted(*fetch(request))

    def _counted(self, attempt: Callable[[bool], Any], deadline: float) -> tuple[Callable[[bool], Any], float]:
        def counted(is_last: bool) -> Any:
            response = attempt(is_last)
            if response is not None:
                self.fetched_bytes += sum(len(part) for batches in response.batches for part in batches)
            return response

        return counted, deadline

    def close(self) -> None:
        """Close it here, once its clients are closed."""
        release(self._server)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self._patched.undo()
        self._temporary.cleanup()


@contextlib.contextmanager
def used_elsewhere(cluster: Any) -> Iterator[None]:
    """Let another process write to a directory meanwhile; a cluster has room for both."""
    if not isinstance(cluster, LocalDirectory):
        yield
        return
    cluster.close()
    try:
        yield
    finally:
        cluster.open()


def restart_all(cluster: Any) -> None:
    """Restart each broker; a directory, which no client may have open, is closed and opened again."""
    if isinstance(cluster, LocalDirectory):
        cluster.close()
        cluster.open()
    for broker in cluster.brokers:
        broker.stop()
        cluster.restart(broker)


def fetched_bytes(cluster: Any) -> float:
    """Return how many bytes the first broker, or the directory, has sent to readers."""
    if isinstance(cluster, LocalDirectory):
        return cluster.fetched_bytes
    return float(cluster.brokers[0].metrics()["headrace_broker_fetched_bytes_total"])


def command_line(cluster: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `headrace` command; on a directory in this process, which has it open."""
    arguments = (*arguments, "--bootstrap-servers", cluster.bootstrap_servers)
    if isinstance(cluster, LocalDirectory):
        found = CliRunner().invoke(app, arguments)
        return subprocess.CompletedProcess(arguments, found.exit_code, found.stdout, found.stderr)
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def produce_to_directory(bootstrap_servers: str, request: broker_pb2.ProduceRequest) -> broker_pb2.ProduceResponse:
    """Send a request to the directory that is open in this process, as brokers have it over gRPC."""
    server = acquire(bootstrap_servers.removeprefix("dir:"))
    try:
        batches: list[list[ReadableBuffer]] = [
            list(part.batches) for topic in request.topics for part in topic.partitions
        ]
        answered: Future[broker_pb2.ProduceResponse] = Future()

        def done(response: broker_pb2.ProduceResponse | None, error: HeadraceError | None) -> None:
            if response is None:
                answered.set_exception(error)
            else:
                answered.set_result(response)

        server.produce(SplicedMessage(request, batches), done)  # Which answers once the records are flushed.
        return answered.result(20)
    finally:
        release(server)


def join_and_fall_silent(bootstrap_servers: str, group: str, session_timeout_ms: int) -> None:
    """Be a member of a group, called as its topic, until it has a partition; then be silent as if killed."""
    server = acquire(bootstrap_servers.removeprefix("dir:"))
    request = groups_pb2.HeartbeatRequest(
        group_id=group,
        member_id=os.urandom(16),
        topics=[group],
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        max_wait_ms=1_000,
    )
    try:
        while not (answer := server.call("groups", "Heartbeat", request)).assigned:
            request.member_epoch, request.known_revision = answer.member_epoch, answer.revision
            request.owned.SetInParent()
    finally:
        release(server)


def exclude(items: list[pytest.Item]) -> None:
    """Skip the tests that a directory cannot pass."""
    for item in items:
        reason = EXCLUDED.get(item.nodeid.rpartition("::")[2].partition("[")[0].partition("@")[0])
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


if __name__ == "__main__":
    print(*(f"tests/{name}" for name in SUITES))
