"""When a paused process counts as paused."""

import os
import signal
import sys

import psutil
import pytest
from headrace_devcluster.process_state import process_state, wait_until_still

from tests.children import running


@pytest.mark.parametrize("has_waitid", [True, False])
def test_a_pause_and_an_end_are_awaited(monkeypatch, has_waitid):
    """macOS lacks waitid before Python 3.13."""
    if not has_waitid:
        monkeypatch.delattr(os, "waitid", raising=False)
    with running([sys.executable, "-c", "input()"], stdin=-1) as child:
        assert process_state(child.pid) == "running"
        child.send_signal(signal.SIGSTOP)
        wait_until_still(child.pid)
        assert process_state(child.pid) == "paused"
        child.kill()
        wait_until_still(child.pid)
        assert process_state(child.pid) == "stopped"


def test_a_part_that_has_ended_is_not_taken_for_the_kernel(monkeypatch):
    """Its id in the state is 0, which on macOS is that of a process."""

    class Kernel:
        def __init__(self, pid):
            assert pid == 0

        def status(self):
            return psutil.STATUS_RUNNING

    monkeypatch.setattr(psutil, "Process", Kernel)
    assert process_state(0) == "stopped"
