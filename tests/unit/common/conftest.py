"""A log on a disk, for what is sent from its files."""

import os

import pytest
from headrace.log import DataDirectory, DiskLimits, LogSettings
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch

TOPIC_ID = bytes(range(16))


@pytest.fixture
def log(tmp_path):
    """A log of 40 batches of 10 kB in files."""
    limits = DiskLimits(reserve_bytes=4096, refuse_below_bytes=0, resume_above_bytes=0)
    directory = DataDirectory.open(
        str(tmp_path), cluster_id="c", generation=1, broker_id=1, new_storage_id=TOPIC_ID, boot_id="b", limits=limits
    )
    log = directory.open_log(TOPIC_ID, 0, LogSettings())
    for number in range(40):
        batch = encode_batch([os.urandom(10_000)], base_timestamp_ms=number)
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=number)
    yield log
    directory.close(clean=False, broker_epoch=1)
