"""Send an Arrow array, read an Arrow table, no object per record: python bulk_arrow.py [host:port [topic]]."""

import sys

import headrace
import pyarrow as pa


def main(cluster: str = "localhost:7170", topic: str = "example-bulk") -> None:
    """Send 100,000 values in compressed batches, and read them back."""
    values = pa.array([b"value %d" % number for number in range(100_000)], pa.binary())
    with headrace.Admin(bootstrap_servers=cluster) as admin:
        admin.create_topic(topic, partitions=1, exist_ok=True)
    with headrace.Producer(bootstrap_servers=cluster, compression_type="zstd") as producer:
        runs = producer.send_many(topic, values).result(timeout=60)
    with headrace.Reader(topic, bootstrap_servers=cluster, last_per_partition=len(values)) as reader:
        table = reader.to_arrow(timeout=60)
    print(len(runs), "batches;", table.num_rows, "rows;", table.column("value")[-1].as_py())


if __name__ == "__main__":
    main(*sys.argv[1:])
