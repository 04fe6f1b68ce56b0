"""`consume` behind a pipe whose reader has gone."""

import os
import select
import sys

import pytest
from headrace.cli.records.consume import check_pipe


def test_a_closed_pipe_is_noticed_without_writing(monkeypatch):
    """While the other end is open nothing happens; once it is closed the command learns it without a write."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        check_pipe()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            check_pipe()


def test_other_outputs_are_left_alone(monkeypatch, tmp_path):
    """A file, and an output that is no file of the system, have no other end that can close."""
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        check_pipe()
    monkeypatch.setattr(sys, "stdout", stdout)  # closed: no descriptor any more
    check_pipe()


def test_a_system_without_poll_is_left_alone(monkeypatch, tmp_path):
    """Windows: a write to a closed pipe fails there, which is early enough."""
    monkeypatch.delattr(select, "poll")
    with (tmp_path / "out").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        check_pipe()
