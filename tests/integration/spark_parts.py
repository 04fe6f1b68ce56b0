"""What the Spark tests share: a topic with known records, and reading, streaming and writing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import headrace
from headrace_devcluster.cluster import LocalCluster

from tests.integration.replicated import until

BASE_MS = 1_700_000_000_000
T = TypeVar("T")
PATIENCE_SECONDS = 240.0
"""What a query may take on a machine that is busy with much else; a test's own limit is longer."""


def change_columns(topic: str, columns: str, **client: Any) -> None:
    """Change the columns of a topic; wait until every server has them, as a client may ask any."""
    with headrace.Admin(**client) as admin:
        admin.alter_config(topic, {"columns": columns})
        made = admin.describe_config(topic)["columns"].value
        found = admin.describe_cluster()
    for server in (*found.brokers, *found.coordinators):
        with headrace.Admin(**{**client, "bootstrap_servers": server.address}) as admin:
            until(lambda admin=admin: admin.describe_topic(topic).columns == made, f"{server.address} has the columns")


class Topic:
    """A topic of a test's own. Record n of a partition has value `<partition>/<n>` and timestamp BASE_MS + n."""

    def __init__(self, cluster: LocalCluster, name: str, partitions: int = 2, **settings: Any) -> None:
        self.name = name
        self.servers = cluster.bootstrap_servers
        settings.setdefault("replication_factor", 1)
        with self.admin() as admin:
            admin.create_topic(name, partitions=partitions, **settings)
        self._written: dict[int, int] = {}

    def admin(self) -> headrace.Admin:
        return headrace.Admin(bootstrap_servers=self.servers)

    def write(self, counts: dict[int, int], batch: int = 50) -> None:
        """Write these numbers of records to partitions, in batches of `batch`."""
        with headrace.Producer(bootstrap_servers=self.servers) as producer:
            for partition, count in counts.items():
                first = self._written.get(partition, 0)
                for start in range(first, first + count, batch):
                    numbers = range(start, min(start + batch, first + count))
                    producer.send_many(
                        self.name,
                        [b"%d/%d" % (partition, n) for n in numbers],
                        timestamps_ms=[BASE_MS + n for n in numbers],
                        partition=partition,
                    )
                self._written[partition] = first + count

    def rows(self, start: int = 0) -> list[tuple[int, int, bytes]]:
        """Every record that `write` wrote: partition, offset, value."""
        return sorted(
            (partition, n, b"%d/%d" % (partition, n))
            for partition, count in self._written.items()
            for n in range(start, count)
        )

    def options(self, **more: Any) -> dict[str, str]:
        """The options that read it."""
        return {"headrace.bootstrap.servers": self.servers, "subscribe": self.name} | {
            name: str(value) for name, value in more.items()
        }

    def source(self, **more: Any) -> Any:
        """The data source as Spark makes it from the options that read the topic, less empty ones; no Java runs."""
        from headrace.spark.source import HeadraceDataSource
        from pyspark.sql.datasource import CaseInsensitiveDict

        return HeadraceDataSource(CaseInsensitiveDict({k: v for k, v in self.options(**more).items() if v}))

    def read(self, spark: Any, schema: str = "", **more: Any) -> Any:
        reader = spark.read.format("headrace").options(**self.options(**more))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, spark: Any, **more: Any) -> Any:
        return spark.readStream.format("headrace").options(**self.options(**more)).load()

    def delete_before(self, before: dict[int, int]) -> None:
        with self.admin() as admin:
            admin.delete_records(self.name, before)

    def values(self, name: str = "") -> list[bytes | None]:
        """The values of a topic, by its own reader, partition by partition in order."""
        return [record.value for record in self.records(name)]

    def records(self, name: str = "") -> list[Any]:
        """The records of a topic, by its own reader, partition by partition in order."""
        with headrace.Reader(name or self.name, bootstrap_servers=self.servers) as reader:
            return sorted(reader.read(timeout=30), key=lambda record: (record.partition, record.offset))


def patiently(run: Callable[[], T]) -> T:
    """Run a query, and once more where the machine was too busy to start a process of Python in the ten seconds that
    Spark gives it; nothing has been read by then.
    """
    for _ in range(3):
        try:
            return run()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()


def rows_of(frame: Any) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of each row, sorted."""
    return sorted_rows(frame.select("partition", "offset", "value").collect())


def sorted_rows(rows: Iterable[Sequence[Any]]) -> list[tuple[int, int, bytes]]:
    return sorted((row[0], row[1], bytes(row[2])) for row in rows)


def tasks_of(frame: Any) -> int:
    """In how many tasks a frame is read."""
    return int(frame.rdd.getNumPartitions())
