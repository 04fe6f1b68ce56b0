"""The directory of a tier of tests: one owner, and nothing left of runs that were killed."""

import fcntl

from tests.containers import tier as tier_module
from tests.containers.tier import Tier


def test_a_directory_that_is_being_taken_is_not_removed(tmp_path, monkeypatch):
    """Another run starts between the creation of the directory and its lock. What a killed run left is removed."""
    monkeypatch.setattr(tier_module, "STATES", tmp_path)
    lock = fcntl.flock
    tier = Tier("mine", "module", tmp_path / "cache", "group")
    others = Tier("mine", "module", tmp_path / "cache", "group")
    (tmp_path / "headrace-mine-left").mkdir()

    def begin_another_run(directory, operation):
        monkeypatch.setattr(tier_module.fcntl, "flock", lock)
        with others._state_directory():
            pass
        lock(directory, operation)

    with others._state_directory() as held:
        assert list(tmp_path.iterdir()) == [held]
    monkeypatch.setattr(tier_module.fcntl, "flock", begin_another_run)
    with tier._state_directory() as state:
        assert tier_module.fcntl.flock is lock
        with others._state_directory() as held:
            assert sorted(tmp_path.iterdir()) == sorted([held, state])
    assert list(tmp_path.iterdir()) == []
