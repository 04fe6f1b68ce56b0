"""What an Arrow table costs the first time."""

import subprocess
import sys

PROGRAM = """
import sys
import pyarrow
from headrace.client.base.arrow_tables import table_of
from headrace.client.base.records import Deserializers, DecodedBatch, TopicPartition
from headrace.wire.columns import decode_batch, encode_batch
for more in ({}, {"keys": [b"k"], "headers": [[("h", b"x")]], "timestamps_ms": [1]}):
    columns = decode_batch(encode_batch([b"v"], base_timestamp_ms=1, **more), max_payload_bytes=1000)
    columns.to_arrow_offsets()
    assert table_of([DecodedBatch(TopicPartition("t", 0), columns, 0, 1, Deserializers())]).num_rows == 1
assert "pandas" not in sys.modules, "pyarrow brought pandas in"
"""


def test_a_table_does_not_import_pandas():
    """Making a table leaves pandas alone: its import takes more than a second, in the middle of a consumer's work."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
