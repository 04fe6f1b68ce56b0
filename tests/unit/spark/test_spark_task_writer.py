"""A writing task and its second try, on a cluster over lists; no Spark runs."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from headrace.spark.identity import TaskIdentity
from headrace.spark.options import write_options
from headrace.spark.routes import by_partition, by_topic, partitions_of
from headrace.spark.task_writer import TaskWriter
from headrace.wire.errors import MetastoreUnavailableError
from headrace.wire.ids import TopicPartition

from tests.fakes.cluster import FakeCluster, running_fake

IDENTITY = TaskIdentity("a query", 3, 1)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with running_fake() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


def rows(*values: bytes, keys: list[bytes | None] | None = None):
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def write(fake, *batches, identity=IDENTITY, dies=False, ends=None, **options):
    """One try of a task; it may die when everything is stored."""
    given = write_options({"headrace.bootstrap.servers": fake.address, "topic": "t", **options})
    try:
        with TaskWriter(given, identity, ends or {}) as writer:
            for batch in batches:
                writer.write(batch)
            writer.finish()
            if dies:
                raise InterruptedError
            return writer.rows
    except InterruptedError:
        return -1


def stored(fake):
    return [partition.values() for partition in fake.topics["t"].partitions]


def test_a_second_try_stores_the_rest_alone(fake):
    """The first died after two of three batches; the third goes where it would have gone."""
    batches = [rows(b"a", b"b"), rows(b"c"), rows(b"d", b"e")]
    write(fake, *batches[:2], dies=True)
    assert write(fake, *batches) == 5
    assert stored(fake) == [[b"c"], [b"a", b"b", b"d", b"e"]]


def test_a_second_try_with_outdated_metadata_stores_nothing_twice(fake):
    """That of the task omits a partition in which the first try stored rows: the task fails, and Spark repeats it."""
    ends = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
    write(fake, rows(b"a"), ends=ends, dies=True)
    assert stored(fake) == [[], [b"a"]]
    ends[TopicPartition("t", 1)] = 1
    omitted = fake.topics["t"].partitions.pop()
    with pytest.raises(MetastoreUnavailableError, match="the metadata of t omits t-1"):
        write(fake, rows(b"a"), ends=ends)
    fake.topics["t"].partitions.append(omitted)
    assert write(fake, rows(b"a"), ends=ends) == 1
    assert stored(fake) == [[], [b"a"]]


def test_a_second_try_with_outdated_metadata_of_the_driver_stores_nothing_twice(fake):
    """Rows of another task, in a partition whose end the driver did not look up: they are compared all the same."""
    write(fake, rows(b"a"), dies=True)
    assert stored(fake) == [[], [b"a"]]
    other = IDENTITY._replace(task=3)
    assert write(fake, rows(b"a"), identity=other, ends={TopicPartition("t", 0): 0}) == 1
    assert stored(fake) == [[], [b"a"]]


def test_the_next_micro_batch_is_another(fake):
    """As is another task, and another query: the same rows are stored for each."""
    others = [IDENTITY, IDENTITY._replace(batch_id=4), IDENTITY._replace(task=3), IDENTITY._replace(query="b")]
    for identity in others:
        write(fake, rows(b"a"), identity=identity)
    assert stored(fake) == [[], [b"a"] * 4]
    assert len({identity.producer_id for identity in others}) == 3


def test_without_idempotent_retries_rows_may_be_stored_twice(fake):
    """Which is what the option says."""
    write(fake, rows(b"a"), dies=True, idempotentRetries="false")
    write(fake, rows(b"a"), idempotentRetries="false")
    assert stored(fake)[1] == [b"a", b"a"]


def test_rows_go_where_they_say():
    """By the column partition, else by key, else together in the task's partition; null means no choice."""
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"1", None, b"1", None], pa.binary()),
            "partition": pa.array([None, None, 4, 3], pa.int32()),
            "value": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
        }
    )
    by_key = partitions_of(batch.slice(0, 1), 5, 2)
    assert partitions_of(batch, 5, 2).tolist() == [by_key[0], 2, 4, 3]
    shares = {share.partition: share.rows.column("value").to_pylist() for share in by_partition("t", batch, 5, 2)}
    assert sorted(value for values in shares.values() for value in values) == [b"a", b"b", b"c", b"d"]
    assert partitions_of(rows(b"a"), 5, 2) is None


def test_topics_of_a_column_keep_their_rows_order():
    """One after the other, in the order in which they first appear."""
    batch = pa.RecordBatch.from_pydict({"topic": ["b", "a", "b"], "value": [b"1", b"2", b"3"]})
    found = [(topic, part.column("value").to_pylist()) for topic, part in by_topic(batch, "")]
    assert found == [("b", [b"1", b"3"]), ("a", [b"2"])]
