"""When a paused process counts as paused."""

import os
import signal
import sys

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
