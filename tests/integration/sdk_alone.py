"""Run by test_cluster_sdk_versions.py in an environment that has the SDK and its four dependencies, nothing else.

Arguments: bootstrap servers, topic. Prints one line of versions when everything worked.
"""

import importlib.metadata
import importlib.util
import sys

import headrace
from headrace.wire.batch import check_batch
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch

bootstrap_servers, topic = sys.argv[1:]
for absent in ("pyarrow", "pandas", "lz4", "zstandard", "typer", "headrace_server"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed; the environment is not empty"

values = [b"value %d" % n for n in range(1_000)]
batch = encode_batch(values, base_timestamp_ms=1_700_000_000_000)
header = check_batch(batch, max_batch_bytes=1 << 20, max_records=10_000, max_payload_bytes=1 << 20)
assert header.record_count == len(values)
assert decode_batch(batch, max_payload_bytes=1 << 20).values() == values

with headrace.Admin(bootstrap_servers=bootstrap_servers) as admin:
    admin.create_topic(topic, partitions=2)
with headrace.Producer(bootstrap_servers=bootstrap_servers, compression_type="gzip") as producer:
    futures = [producer.send(topic, value, key=b"one", headers=[("n", b"1")]) for value in values]
    assert [future.result(30).offset for future in futures] == list(range(len(values)))
    producer.send_many(topic, values, partition=1 - futures[0].result().partition)
    producer.flush(timeout=30)
with headrace.Reader(topic, bootstrap_servers=bootstrap_servers) as reader:
    read = list(reader)
assert sorted(record.value for record in read) == sorted(values * 2)
assert [record.value for record in read if record.key == b"one"] == values

names = ("grpcio", "protobuf", "numpy", "fastcrc")
print(" ".join(f"{name}={importlib.metadata.version(name)}" for name in names))
