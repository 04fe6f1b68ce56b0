"""One process of the local cluster: it comes, keeps its port, tells why it failed, and never outlives its parent."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace_devcluster.errors import PartStartError, PortInUseError
from headrace_devcluster.ports import ReservedPort
from headrace_devcluster.service import LocalService, ServiceSpec

from tests.children import running

HERE = Path(__file__).parent


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    made: list[LocalService] = []

    def make_service(port: int = 0, **settings: object) -> LocalService:
        service = LocalService(ServiceSpec("broker-1", "stand_in_service", tmp_path, port, settings))
        made.append(service)
        return service

    yield make_service
    for service in made:
        service.kill()


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def wait_for(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        os.sched_yield()


def start(service: LocalService) -> LocalService:
    service.launch()
    service.wait_until_ready(20)
    return service


def test_a_service_has_variables_of_its_own(make) -> None:
    """What the spec says goes before what this process has."""
    service = make()
    service = start(LocalService(dataclasses.replace(service.spec, environment={"PYTHONPATH": f"{HERE}:/nowhere"})))
    try:
        assert f"PYTHONPATH={HERE}:/nowhere\0" in Path(f"/proc/{service.pid}/environ").read_text()
    finally:
        service.kill()


def test_a_restart_keeps_the_port(make) -> None:
    """The kernel chooses the port once; killed and started again, the service has the same address."""
    service = start(make())
    address, pid = service.address, service.pid
    service.kill()
    assert service.pid is None
    start(service)
    assert service.address == address
    assert service.pid != pid


def test_no_process_gets_the_port_of_a_killed_service(make) -> None:
    """While it is down its port is bound: no connection that the machine opens meanwhile begins there."""
    service = start(make())
    service.kill()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", int(service.address.rpartition(":")[2])))
    start(service)


def test_stop_is_orderly_and_leaves_no_zombie(make) -> None:
    """`stop` gives the exit code of an orderly end, and the process is reaped."""
    service = start(make())
    pid = service.pid
    assert service.stop() == 0
    assert state_of(pid) == "gone"


def test_pause_and_resume(make) -> None:
    """A paused process is stopped by the kernel and runs again when resumed; a paused one can be stopped too."""
    service = start(make())
    service.pause()
    assert service.state == "paused"
    wait_for(lambda: state_of(service.pid) == "T")
    service.resume()
    wait_for(lambda: state_of(service.pid) != "T")
    service.pause()
    assert service.stop() == 0


def test_a_failed_start_shows_the_log(make) -> None:
    """The error has the part's name and what the process said."""
    with pytest.raises(PartStartError, match=r"(?s)broker-1 ended with exit code 1.*told to fail: no disk"):
        start(make(fail="no disk"))


def test_a_start_that_takes_too_long_is_killed(make) -> None:
    """No process is left behind by a start that was given up."""
    service = make(never_ready=1)
    service.launch()
    pid = service.pid
    with pytest.raises(PartStartError, match="was not ready within"):
        service.wait_until_ready(0.2)
    assert state_of(pid) == "gone"


def test_a_taken_port_is_named(make) -> None:
    """One line names the port and the part."""
    port = ReservedPort()
    start(make(port=port))
    with pytest.raises(PortInUseError, match=f"port {port} of broker-1 is in use"):
        make(port=port).launch()


def test_settings_of_the_shell_do_not_reach_the_service(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster is what its spec says: HEADRACE_BROKER_... of the developer's shell stays outside."""
    monkeypatch.setenv("HEADRACE_BROKER_LISTEN", "127.0.0.1:1")
    service = start(make())
    environ = Path(f"/proc/{service.pid}/environ").read_bytes()
    assert b"HEADRACE_BROKER_LISTEN" not in environ


def test_the_service_ends_with_its_parent(tmp_path: Path) -> None:
    """SIGKILL of the owner, which no handler sees, ends the service too."""
    owner = textwrap.dedent("""
        import sys, signal
        from pathlib import Path
        from headrace_devcluster.service import LocalService, ServiceSpec
        service = LocalService(ServiceSpec("broker-1", "stand_in_service", Path(sys.argv[1])))
        service.launch()
        service.wait_until_ready()
        print(service.pid, flush=True)
        signal.pause()
    """)
    with running(
        [sys.executable, "-c", owner, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    ) as process:
        pid = int(process.stdout.readline())
        assert state_of(pid) != "gone"
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_for(lambda: state_of(pid) in ("gone", "Z"))
