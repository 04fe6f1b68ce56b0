"""Settings that no log and no data directory can work with are refused where they are made."""

import pytest
from headrace.log import DiskLimits, LogSettings
from headrace.log.settings import MAX_SEGMENT_BYTES


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("segment_bytes", 0, f"must be 1 to {MAX_SEGMENT_BYTES}"),
        ("segment_bytes", MAX_SEGMENT_BYTES + 1, f"must be 1 to {MAX_SEGMENT_BYTES}"),
        ("segment_ms", 0, "must be positive"),
        ("index_interval_bytes", -1, "must be positive"),
        ("checkpoint_interval_ms", 0, "must be positive"),
        ("max_batch_bytes", 0, "must be positive"),
        ("retention_ms", -2, "no limit"),
        ("retention_bytes", -2, "no limit"),
        ("file_delete_delay_ms", -1, "must be 0 or more"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value(name: str, value: int, reason: str) -> None:
    """The message has the setting, what it is and what it may be."""
    with pytest.raises(ValueError, match=f"^{name} is {value}; it .*{reason}"):
        LogSettings(**{name: value})


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"refuse_below_bytes": 2, "resume_above_bytes": 1}, "resume_above_bytes must be at least refuse_below_bytes"),
        ({"reserve_bytes": -1}, "must not be negative"),
        ({"refuse_below_bytes": -1}, "must not be negative"),
        ({"max_open_files": 0}, "at least 1"),
        ({"check_every_bytes": 0}, "at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, int], reason: str) -> None:
    """Appends that were refused could never be taken again, or no file opened."""
    with pytest.raises(ValueError, match=reason):
        DiskLimits(**limits)
