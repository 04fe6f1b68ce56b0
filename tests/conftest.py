"""Fixtures for all tests, and two promises: cluster tests share one cluster, and no process of ours is left behind."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.nodeid import NodeId
from headrace_devcluster.cluster import LocalCluster
from headrace_devcluster.service import LocalService
from headrace_server.identity.gate import set_access
from hypothesis import settings

from tests.fakes.open_gate import open_access
from tests.fork_server import forked_services, is_fork_server

pytest_plugins = ["headrace_devcluster.fixtures", "tests.async_tests", "tests.object_store", "tests.spark_session"]

settings.register_profile("headrace", deadline=None)  # Examples are not timed: the machine may be busy.
settings.load_profile("headrace")

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
GRACE_S = 60.0
"""A test that runs for twice its timeout, and this much longer, ends its worker."""
_GROUPS = {
    "headrace_cluster": "headrace_cluster",
    "spark_session": "spark_session",
    "spark_cluster": "spark_session",
    "chart": "chart",
}
"""The worker of pytest in which a fixture's tests run."""
OPEN_ACCESS = open_access()


def pytest_configure() -> None:
    """Let the hundreds of processes of a run start quickly: keep what they compile.

    Every Java starts as the jobs' own does, and does not verify the classes of Spark: a fifth of what a start costs.
    Where `PYTHONDONTWRITEBYTECODE` is set, as in many images, each would compile all that it imports: a broker for a
    second. Workers of pytest inherit the variables.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores Ctrl-C, and so would all that it starts: the tests send it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
    if os.environ.get("HEADRACE_TEST_TRANSPORT") == "grpc":
        _serve_grpc_alone()
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        sys.dont_write_bytecode = False


def _serve_grpc_alone() -> None:
    """Start brokers of tests without the native protocol, so that every client uses gRPC: `make test-grpc`."""
    make_part = LocalCluster._make_part

    def make_grpc_part(
        cluster: LocalCluster, name: str, module: str, port: int, own: Mapping[str, object]
    ) -> LocalService:
        off = {"native_listen": "off"} if module == "headrace_broker" else {}
        return make_part(cluster, name, module, port, {**off, **own})

    LocalCluster._make_part = make_grpc_part  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the native protocol where brokers do not serve it, and group those that share a fixture.

    With several workers (`-n 2 --dist loadgroup`) all tests of the shared cluster run in one: it is started once.

    So do all tests of the Spark session and of its cluster, those of the chart, which is rendered and checked once for
    each set of values, and those of a module that share what a fixture makes. The group is said at the end of the id,
    where pytest-xdist looks: what its mark writes pytest 9.2 does not read.
    """
    if os.environ.get("HEADRACE_TEST_TRANSPORT") == "grpc":
        left_out = [item for item in items if item.get_closest_marker("native")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs
        group = next((group for shared, group in _GROUPS.items() if shared in definitions), "")
        if not group and any(each[-1].scope == "module" for each in definitions.values()):
            group = item.path.stem
        if group:
            item._id = NodeId.parse(f"{item.nodeid}@{group}")
            assert item.nodeid.endswith(f"@{group}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a worker whose test its timeout does not end, with the stacks of all threads.

    pytest-timeout raises from a signal's handler in the main thread. Python drops what is raised within a finalizer,
    and runs no handler while C code does not return: such a test would hold up the run without a word.
    """
    marker = item.get_closest_marker("timeout")
    of_run = item.config.getoption("timeout") or item.config.getini("timeout")
    seconds = float(marker.args[0] if marker and marker.args else of_run)
    faulthandler.dump_traceback_later(
        2 * seconds + GRACE_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key]
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_setup() -> None:
    """Let handlers that a test calls without a server serve everybody; leave out what `make fast` has no time for."""
    set_access(OPEN_ACCESS)
    if time.time() > float(os.environ.get("HEADRACE_TEST_DEADLINE", "inf")):
        pytest.skip("out of time")


def _words(process: psutil.Process) -> str:
    """Return a command line without the directory of its program: a clone may be named headrace."""
    program, *arguments = process.cmdline() or [""]
    return " ".join((Path(program).name, *arguments))


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Every process that the tests started has ended when they have: the last fixture to be torn down looks."""
    with forked_services():
        yield
    left = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    left = [child for child in left if not is_fork_server(child)]
    ours = [child for child in left if any(word in _words(child) for word in ("headrace", "etcd"))]
    for child in ours:
        child.kill()
    assert not ours, f"left running: {[child.cmdline() for child in ours]}"
