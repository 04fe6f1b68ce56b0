"""The clean marker is a promise about every log of a directory (H39, H40)."""

import errno

import pytest
from headrace.wire.errors import StorageOfflineError


def test_no_stop_is_clean_where_a_log_has_failed(bench):
    """A log that met an I/O error may lack what it was given, whatever its owner asks for at the end."""
    bench.open()
    bench.append()
    bench.disk.fail("fsync", errno.EIO, suffix=".log")
    with pytest.raises(StorageOfflineError):
        bench.log.flush()
    bench.directory.close(clean=True, broker_epoch=7)
    assert bench.open_directory().clean_broker_epoch is None


def test_a_clean_stop_is_known_to_the_next_start_only(bench):
    """The first start removes the marker, even if that process crashes afterwards."""
    bench.open()
    bench.append()
    bench.directory.close(clean=True, broker_epoch=7)
    assert bench.open_directory().clean_broker_epoch == 7
    bench.directory.close(clean=False)
    assert bench.open_directory().clean_broker_epoch is None
