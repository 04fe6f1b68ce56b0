"""Background cluster that outlives the command that started it: `up` and `down`.

`up` starts `python -m headrace_devcluster run` in its own session and waits for its state file. Only the lock on the
data directory shows whether it runs, so that a stale file or a reused process id is not mistaken for a cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from headrace_devcluster.directory import claim_directory
from headrace_devcluster.errors import ClusterNotStoppingError, PartStartError
from headrace_devcluster.process_state import process_state
from headrace_devcluster.state import STATE_FILE, ClusterState, owner_pid, read_state

START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 90.0
POLL_SECONDS = 0.02
OWNER_LOG = "run.log"
RESTART_SIGNAL = signal.SIGUSR1
"""Signal from `up` to the owner of a running cluster to restart exited parts."""


def start_in_background(directory: Path, command: Sequence[str]) -> ClusterState:
    """Start the owner of a directory by its command line, and return its state when it is healthy.

    Raises:
        ForeignDirectoryError: See `claim_directory`.
        PartStartError: If it ended before; the message has its output.
    """
    claim_directory(directory)
    log_file = directory / OWNER_LOG
    with log_file.open("wb") as log:
        owner = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    try:
        while (state := read_state(directory)) is None:
            if owner.poll() is not None:
                output = _last_error(log_file)
                raise PartStartError(output or f"the cluster ended with exit code {owner.returncode}")
            if time.monotonic() > deadline:
                raise PartStartError(f"the cluster was not up within {START_TIMEOUT_SECONDS:g} s; see {log_file}")
            time.sleep(POLL_SECONDS)
    except BaseException:
        owner.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # It will end, and its children with it.
            owner.wait(STOP_TIMEOUT_SECONDS)
        raise
    return state


def restart_in_background(directory: Path, state: ClusterState) -> list[str]:
    """Make the owner restart the parts that exited; return the names of the restarted parts.

    Raises:
        PartStartError: If a part did not start; the message names its log file. Also if the owner ended meanwhile.
    """
    ended = {part.name: part for part in state.parts if process_state(part.pid) == "stopped"}
    if not ended:
        return []
    before = (directory / STATE_FILE).stat()
    os.kill(state.pid, RESTART_SIGNAL)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while os.path.samestat(before, (directory / STATE_FILE).stat()):  # The owner replaces it after all restarts.
        if owner_pid(directory) != state.pid:
            raise PartStartError(f"the cluster has ended: {_last_error(directory / OWNER_LOG)}")
        if time.monotonic() > deadline:
            raise PartStartError(f"{', '.join(sorted(ended))} did not start again within {START_TIMEOUT_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
    now = read_state(directory)
    for part in now.parts if now else ():
        if process_state(part.pid) == "stopped":
            raise PartStartError(f"{part.name} cannot be started again; see {directory / OWNER_LOG}, {part.log_file}")
    return sorted(ended)


def _last_error(log_file: Path) -> str:
    """Return the error with which an owner has ended, or its last words; empty if it has written nothing."""
    return log_file.read_text(errors="replace").strip().rpartition("error: ")[2]


def stop_in_background(directory: Path) -> bool:
    """Stop the cluster that runs on the directory; return False if there is none.

    Raises:
        ClusterNotStoppingError: If it does not end; kill it by hand.
    """
    pid = owner_pid(directory)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while owner_pid(directory) == pid or process_state(pid) == "running":
        if time.monotonic() > deadline:
            raise ClusterNotStoppingError(
                f"process {pid} did not stop within {STOP_TIMEOUT_SECONDS:g} s", action=f"End it: kill -9 {pid}."
            )
        time.sleep(POLL_SECONDS)
    return True
