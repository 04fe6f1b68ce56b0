"""Real etcd on this machine, for the local cluster and for tests: start, pause, kill and restart it."""

from __future__ import annotations

import json
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.wire.errors import HeadraceError

from headrace_devcluster.certificates import TlsPaths
from headrace_devcluster.etcd_program import find_etcd, version_of
from headrace_devcluster.guarded_exec import guarded
from headrace_devcluster.ports import ReservedPort
from headrace_devcluster.process_state import wait_until_still

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


class EtcdStartError(HeadraceError):
    """etcd ended or did not respond in time; the message has the end of its log."""


class Etcd:
    """etcd process with its data directory. Not thread-safe: owned by the thread that starts it.

    As a context manager, `with Etcd(directory) as etcd:`, it starts etcd and kills it at the end.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "local",
        client_port: int = 0,
        peer_port: int = 0,
        peers: Mapping[str, int] | None = None,
        fsync: bool = False,
        extra_arguments: tuple[str, ...] = (),
        tls: TlsPaths | None = None,
    ) -> None:
        """Create `directory` if it is missing. With port 0 the kernel chooses once and restarts keep the port. With
        `tls` etcd requires client certificates of that authority.

        `peers` are the peer ports of all members of its cluster by name, including this one; `None` means a single
        member. Without `fsync` etcd is much faster, but a crash of the machine may lose data.
        """
        self.directory = directory
        self.name = name
        self.log_file = directory / "etcd.log"
        self.binary: Path | None = None
        """Program of the last start."""
        self._client_port = client_port
        self._peer_port = peer_port
        self._peers = peers
        self._fsync = fsync
        self._extra_arguments = extra_arguments
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Etcd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        """host:port for clients, once started."""
        assert self._client_port, "etcd was never started"
        return f"127.0.0.1:{self._client_port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else `None`."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Start etcd, or restart it with its data and ports, and return when it is healthy.

        Raises:
            EtcdNotFoundError: If there is no binary.
            EtcdStartError: If it ended or was not healthy in time.
        """
        self.launch()
        self.wait_until_healthy(timeout_seconds)

    def launch(self) -> None:
        """Start the process and return at once, because one of several members is not healthy before most of them run.

        Raises:
            EtcdNotFoundError: If there is no binary.
            EtcdStartError: If the data is of a newer release.
        """
        assert self.pid is None, "etcd is already running"
        self.binary = find_etcd()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check_release(version_of(self.binary))
        self._client_port = self._client_port or ReservedPort()
        self._peer_port = self._peer_port or ReservedPort()
        with self.log_file.open("ab") as log_file:
            self._process = subprocess.Popen(
                guarded([str(self.binary.resolve()), *self._arguments()]),
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _check_release(self, version: tuple[int, ...]) -> None:
        """Note the release that runs on the data. An older one cannot open it, and ends with a stack trace."""
        if not version:
            return
        note = self.directory / "release"
        last = tuple(map(int, note.read_text().split("."))) if note.exists() else ()
        if version[:2] < last[:2]:
            raise EtcdStartError(
                f"the data in {self.directory} is of etcd {'.'.join(map(str, last))}, which "
                f"{'.'.join(map(str, version))} cannot open: {self.binary}",
                action="Put the newer etcd on PATH or in HEADRACE_ETCD, or begin anew: `headrace local up --fresh`.",
            )
        if version != last:
            note.write_text(".".join(map(str, version)))

    def wait_until_healthy(self, timeout_seconds: float = START_TIMEOUT_SECONDS) -> None:
        """Wait until it responds and has a leader; otherwise kill it.

        Raises:
            EtcdStartError: If it ended or was not healthy in time.
        """
        try:
            self._wait_until_healthy(time.monotonic() + timeout_seconds, timeout_seconds)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop etcd by SIGTERM, and by SIGKILL after ten seconds."""
        if self._process is None:
            return
        self._process.terminate()
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Kill etcd (SIGKILL). Does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Pause the process (SIGSTOP): it keeps its connections and answers none. Return when it has stopped."""
        self._signal(signal.SIGSTOP)
        if self.pid is not None:
            wait_until_still(self.pid)

    def resume(self) -> None:
        """Resume a paused etcd (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def version(self) -> tuple[int, ...]:
        """Return the version of the running etcd, such as (3, 5, 1)."""
        text = self._ask("version", timeout=5)["etcdserver"]
        return tuple(int(part) for part in re.findall(r"\d+", text)[:3])

    def is_leader(self) -> bool:
        """Return whether it is the leader of its cluster."""
        status = self._ask("v3/maintenance/status", timeout=5, body=b"{}")
        found: bool = status["leader"] == status["header"]["member_id"]
        return found

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return f"(no log: {error.strerror})"

    def _arguments(self) -> list[str]:
        client, peer = f"{self._scheme}://127.0.0.1:{self._client_port}", f"http://127.0.0.1:{self._peer_port}"
        peers = self._peers or {self.name: self._peer_port}
        members = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in peers.items())
        arguments = [
            f"--name={self.name}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={members}",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=10m",
            "--log-level=warn",
        ]
        if not self._fsync:
            arguments.append("--unsafe-no-fsync")
        if self._tls is not None:
            arguments += [
                f"--cert-file={self._tls.cert_file}",
                f"--key-file={self._tls.key_file}",
                f"--trusted-ca-file={self._tls.ca_file}",
                "--client-cert-auth",
            ]
        return arguments + list(self._extra_arguments)

    @property
    def _scheme(self) -> str:
        return "http" if self._tls is None else "https"

    def _ask(self, path: str, timeout: float, body: bytes | None = None) -> dict[str, Any]:
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(cafile=str(self._tls.ca_file))
            context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        url = f"{self._scheme}://{self.endpoint}/{path}"
        with urllib.request.urlopen(url, body, timeout=timeout, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _wait_until_healthy(self, deadline: float, timeout_seconds: float) -> None:
        assert self._process is not None
        while True:
            if self._process.poll() is not None:
                raise EtcdStartError(
                    f"etcd ended with exit code {self._process.returncode}; the end of {self.log_file}:\n"
                    f"{self.log_tail()}",
                    action="Look for the cause in its log; often its port is taken.",
                )
            try:
                if self._ask("health", timeout=1).get("health") == "true":
                    return
            except (urllib.error.URLError, OSError, ValueError):
                pass  # Not ready yet; the loop has a deadline.
            if time.monotonic() > deadline:
                raise EtcdStartError(
                    f"etcd was not healthy within {timeout_seconds:g} s; the end of {self.log_file}:\n"
                    f"{self.log_tail()}",
                    action="Look for the cause in its log.",
                )
            time.sleep(0.02)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)  # No effect if it has just ended.


def make_members(
    directory: Path, count: int, *, first_port: int = 0, fsync: bool = False, tls: TlsPaths | None = None
) -> list[Etcd]:
    """Return the members of one cluster below `directory`, not started.

    They use two ports each from `first_port` on; `0` means that the kernel chooses.
    """
    ports = [first_port + n if first_port else ReservedPort() for n in range(2 * count)]
    names = ["local"] if count == 1 else [f"member-{number}" for number in range(1, count + 1)]
    peers = dict(zip(names, ports[1::2], strict=True))
    return [
        Etcd(
            directory / ("etcd" if count == 1 else f"etcd-{name}"),
            name=name,
            client_port=client_port,
            peer_port=peers[name],
            peers=peers,
            fsync=fsync,
            tls=tls,
        )
        for name, client_port in zip(names, ports[::2], strict=True)
    ]
