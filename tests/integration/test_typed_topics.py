"""Typed topics on a real cluster: rows and tables go in, rows and Arrow columns come out, columns change."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import itertools
import json
import re
import struct
import time

import grpc
import headrace
import pyarrow as pa
import pytest
from headrace import aio
from headrace.client.base.errors import ConfigError, SerializationError
from headrace.v1 import broker_pb2, broker_pb2_grpc, topics_pb2
from headrace.wire.batch import BatchFlags
from headrace.wire.encoding import RowBlocks, column_parts, encode_batch
from headrace.wire.errors import (
    ConflictError,
    CorruptBatchError,
    InvalidConfigError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    UnknownTopicError,
    from_detail,
)
from headrace.wire.typed.array_blocks import block_of_array
from headrace.wire.typed.column_types import parse_type
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.on_directory import IS_ON, command_line, fetched_bytes, produce_to_directory
from tests.integration.replicated import until
from tests.integration.terminals import command_on_terminal
from tests.unit.wire.test_wire_typed_payload import resealed

COLUMNS = 'page string required, user int64, at timestamp[ms, UTC], tags list<string>, country string default "DE"'


@pytest.fixture(scope="module")
def cluster():
    settings = {"metrics_listen": "127.0.0.1:0"}
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, broker_settings=settings)) as running:
        yield running


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.native), "grpc"])
def client(cluster, request):
    return {"bootstrap_servers": cluster.bootstrap_servers, "transport": request.param}


@pytest.fixture
def topic(cluster, client, request):
    name = "rows-" + re.sub(r"\W+", "-", request.node.name)[:100]
    with headrace.Admin(**client) as admin:
        admin.create_topic(name, partitions=2, columns=COLUMNS)
    return name


def table(count, start=0):
    numbers = range(start, start + count)
    return pa.table(
        {
            "page": [f"/p{number % 7}" for number in numbers],
            "user": pa.array(numbers, pa.int64()),
            "at": pa.array(numbers, pa.timestamp("ms", "UTC")),
            "tags": [["a", str(number)] if number % 3 else None for number in numbers],
            "country": ["FR" if number % 2 else None for number in numbers],
        }
    )


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_table_comes_back(client, topic, compression):
    """Rows of a table are read as the same Arrow columns, as dicts, and through a consumer."""
    sent = table(5_000)
    with headrace.Producer(**client, compression_type=compression, batch_bytes=64 * 1024) as producer:
        for partition in (0, 1):
            producer.send_table(topic, sent.slice(2_500 * partition, 2_500), partition=partition)
    with headrace.Reader(topic, **client) as reader:
        found = reader.to_arrow()
    assert found.sort_by("user").equals(sent.cast(found.schema))
    with headrace.Reader(topic, **client) as reader:
        rows = sorted((record.value for record in reader), key=lambda row: row["user"])
    assert rows == sent.to_pylist()
    with headrace.Consumer(topic, group_id=f"g-{topic}", auto_offset_reset="earliest", **client) as consumer:
        got: list[dict] = []
        while len(got) < 5_000:
            got += [record.value for record in consumer.poll(timeout=10)]
    assert sorted(got, key=lambda row: row["user"]) == rows


@pytest.mark.parametrize(("settings", "together"), [({}, 2), ({"max_request_bytes": 24 * 1024}, 1)])
def test_two_batches_of_a_table_share_a_request(client, topic, settings, together):
    """Each future has its offset, and two batches are sealed together if both fit into a request."""
    with headrace.Producer(**client, batch_bytes=16 * 1024, **settings) as producer:
        parts = producer.send_table(topic, table(5_001), partition=0).parts
        offsets = [future.result(timeout=10).offset for future, _ in parts]
        assert producer.stats().sent_batches == len(parts)
    assert offsets == [0, *itertools.accumulate(rows for _, rows in parts)][:-1]
    assert sum(rows for _, rows in parts) == 5_001
    assert len({id(future.batch) for future, _ in parts}) == -(-len(parts) // together)
    with headrace.Reader(topic, **client) as reader:
        assert reader.to_arrow().column("user").to_pylist() == list(range(5_001))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_columns_and_ranges_are_selected(cluster, client, topic, compression):
    """Brokers send the wanted columns alone, and the directory of batches without a row in the ranges."""
    sent = table(20_000)
    with headrace.Producer(**client, compression_type=compression, batch_bytes=32 * 1024) as producer:
        for partition in (0, 1):
            producer.send_table(topic, sent.slice(10_000 * partition, 10_000), partition=partition)

    def read(**selection):
        before = fetched_bytes(cluster)
        with headrace.Reader(topic, **client, **selection) as reader:
            found = reader.to_arrow()
        return found.sort_by(found.column_names[0]), fetched_bytes(cluster) - before

    whole, whole_bytes = read()
    assert whole.num_rows == 20_000
    users, users_bytes = read(columns=["user"])
    assert users.column("user").to_pylist() == list(range(20_000))
    assert users_bytes < whole_bytes / 3
    low, high = 12_345, 12_999
    part, part_bytes = read(columns=["user", "page"], where={"user": (low, high)})
    assert part.equals(sent.slice(low, high - low + 1).select(["user", "page"]).cast(part.schema))
    assert part_bytes < users_bytes / 2
    moments = {"at": (dt.datetime.fromtimestamp(low / 1000, dt.UTC), None)}
    with headrace.Reader(topic, columns=["page", "_offset", "_timestamp"], where=moments, **client) as reader:
        late = reader.to_arrow()
    assert late.num_rows == 20_000 - low
    assert sorted(late.column("_offset").to_pylist()) == list(range(low - 10_000, 10_000))
    with headrace.Reader(
        topic, columns=["user"], where={"country": ("FR", "FR"), "user": (None, 99)}, **client
    ) as reader:
        rows = [(record.offset, record.value) for record in reader]
    assert sorted(rows) == [(number, {"user": number}) for number in range(1, 100, 2)]
    with headrace.Reader(topic, columns=["user"], value_deserializer=bytes, end=1, **client) as reader:
        assert sorted(json.loads(record.value)["user"] for record in reader) == [0, 10_000]
    with headrace.Reader(topic, where={"user": (-5, -1)}, **client) as reader:
        assert list(reader) == []
    with headrace.Reader(topic, columns=["user"], where={"tags": (None, None)}, **client) as reader:
        assert reader.to_arrow().num_rows == sum(1 for number in range(20_000) if number % 3)


def test_wrong_selections(client, topic):
    """The error names the column and the value."""
    for selection, error, message in (
        ({"columns": ["pages"]}, InvalidConfigError, "there is no column 'pages'"),
        ({"columns": "page"}, ConfigError, "columns is one str"),
        ({"where": {"user": 1}}, ConfigError, "where: user has no two ends"),
        ({"where": {"user": ("a", None)}}, ConfigError, "where: 'a' is no int64, the type of user"),
        ({"where": {"user": (None, 2.5)}}, ConfigError, "where: 2.5 is no int64, the type of user"),
        ({"where": {"users": (1, 2)}}, InvalidConfigError, "there is no column 'users'"),
    ):
        with pytest.raises(error, match=message):
            headrace.Reader(topic, **client, **selection)
    with headrace.Admin(**client) as admin:
        admin.create_topic("plain", partitions=1, exist_ok=True)
    with pytest.raises(ConfigError, match="plain has no columns"):
        headrace.Reader("plain", columns=["a"], **client)


def test_rows_and_tables_interoperate(client, topic):
    """Dicts of `send` are read as columns, with defaults; several small batches are one table."""
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, dt.UTC)
    with headrace.Producer(**client) as producer:
        producer.send(topic, {"page": "/a", "user": 1, "at": at, "tags": ["x"]}, partition=0)
        producer.send(topic, {"page": "/b", "country": None}, key=b"k", headers=[("h", b"v")], partition=0).result()
        producer.send_table(topic, pa.table({"page": ["/c"]}), partition=0).result()
    with headrace.Reader(topic, **client) as reader:
        batch = reader.read()
    assert [record.value for record in batch] == [
        {"page": "/a", "user": 1, "at": at, "tags": ["x"], "country": "DE"},
        {"page": "/b", "user": None, "at": None, "tags": None, "country": None},
        {"page": "/c", "user": None, "at": None, "tags": None, "country": "DE"},
    ]
    assert (batch[1].key, batch[1].headers) == (b"k", (("h", b"v"),))
    chosen = batch.to_arrow(["_offset", "page", "_key", "_partition"])
    assert chosen.to_pydict() == {
        "_offset": [0, 1, 2], "page": ["/a", "/b", "/c"], "_key": [None, b"k", None], "_partition": [0, 0, 0],
    }  # fmt: skip
    with pytest.raises(InvalidConfigError, match="there is no column 'pages'"):
        batch.to_arrow(["pages"])


def test_a_deserializer_gets_json(client, topic):
    """A deserializer is given each row as a JSON object."""
    with headrace.Producer(**client) as producer:
        producer.send(topic, {"page": "/a", "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}).result()
    with headrace.Reader(topic, value_deserializer=json.loads, **client) as reader:
        (record,) = reader
    assert record.value == {
        "page": "/a", "user": None, "at": "2026-01-02T00:00:00+00:00", "tags": None, "country": "DE",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"page": "/a", "user": "one"}, "column user: 'one' is no int64"),
        ({"page": "/a", "user": 2**63}, "column user: 9223372036854775808 is no int64"),
        ({"user": 1}, "column page is required, and null"),
        ({"page": "/a", "pages": 1}, "the topic has no column 'pages'"),
        (b"bytes", "is a typed topic with the columns"),
        (None, "is a typed topic with the columns"),
    ],
)
def test_a_row_that_does_not_fit(client, topic, value, message):
    """The error names the column and the value, before anything is sent."""
    with headrace.Producer(**client) as producer, pytest.raises(SerializationError, match=message):
        producer.send(topic, value)


def test_tables_that_do_not_fit(client, topic):
    """The error names the column, and the row if it is one."""
    with headrace.Producer(**client) as producer:
        for wrong, message in (
            (pa.table({"page": ["a"] * 4, "user": ["1", "2", "x", "y"]}), "string does not fit int64 in row 2: .*'x'"),
            (pa.table({"page": ["a", None]}), "column page is required, and null in row 1"),
            (pa.table({"user": [1]}), "the required column page is missing"),
            (pa.table({"page": ["a"], "no": [1]}), "the topic has no column 'no'"),
            ({"page": ["a"]}, "dict is no table"),
        ):
            with pytest.raises(SerializationError, match=message):
                producer.send_table(topic, wrong)
        with pytest.raises(SerializationError, match="is a typed topic"):
            producer.send_many(topic, [b"a"])


def test_dicts_and_tables_need_a_typed_topic(client):
    """A dict for a topic of bytes is refused, with what to do."""
    with headrace.Admin(**client) as admin:
        admin.create_topic("plain", partitions=1, exist_ok=True)
    with headrace.Producer(**client) as producer:
        with pytest.raises(SerializationError, match="the topic has no columns"):
            producer.send("plain", {"a": 1})
        with pytest.raises(SerializationError, match="plain is not a typed topic"):
            producer.send_table("plain", pa.table({"a": [1]}))


def test_columns_change(client, topic):
    """Producers and readers of older columns continue; renamed, widened and new columns are found by id."""
    with headrace.Admin(**client) as admin, headrace.Producer(**client) as old:
        old.send(topic, {"page": "/a", "user": 1}, partition=0).result()
        with pytest.raises(InvalidConfigError, match="score is new and required: with compatibility=backward"):
            admin.alter_config(topic, {"columns": f"{COLUMNS}, score double required"})
        with pytest.raises(InvalidConfigError, match="user was int64 and is string"):
            admin.alter_config(topic, {"columns": COLUMNS.replace("int64", "string")})
        wanted = "1 url string required, user int64, at timestamp[ms, UTC], score double default 0.5"
        admin.alter_config(topic, {"columns": wanted})
        made = (
            "1 url string required, 2 user int64, 3 at timestamp[ms, UTC], 6 score double default 0.5, "
            "4 tags list<string> dropped, 5 country string dropped"
        )
        assert admin.describe_config(topic)["columns"].value == made
        until(lambda: admin.describe_topic(topic).columns == made, "the metadata has the new columns")

        def new_columns():
            with headrace.Producer(**client) as producer:
                return producer.send(topic, {"url": "/new", "score": 1.5}, partition=0).result()

        until(lambda: _accepted(new_columns), "every server knows the new columns")
        try:
            old.send(topic, {"page": "/old", "user": 2}, partition=0).result()
        except SerializationError:  # A slow answer had it read the metadata again, so that it has the new columns, too.
            old.send(topic, {"url": "/old", "user": 2}, partition=0).result()
        with headrace.Producer(**client) as producer:
            producer.send_table(topic, pa.table({"url": ["/table"], "user": pa.array([3], pa.int8())}), partition=0)
            producer.flush()
        with headrace.Reader(topic, **client) as reader:
            found = reader.to_arrow()
        assert found.column_names == ["url", "user", "at", "score"]
        assert found.select(["url", "user", "score"]).to_pylist() == [
            {"url": "/a", "user": 1, "score": 0.5},
            {"url": "/new", "user": None, "score": 1.5},
            {"url": "/old", "user": 2, "score": 0.5},
            {"url": "/table", "user": 3, "score": 0.5},
        ]
        with headrace.Reader(topic, **client) as reader:
            assert [record.value["url"] for record in reader] == ["/a", "/new", "/old", "/table"]


def _accepted(send):
    try:
        return send()
    except SerializationError:
        return None


def test_key_columns(client):
    """Rows with key columns go to the partition of their key, from dicts and from tables alike."""
    topic = f"keyed-{client['transport']}"
    with headrace.Admin(**client) as admin:
        admin.create_topic(topic, partitions=4, columns="user string key, n int64 required")
    rows = [{"user": f"u{number % 11}", "n": number} for number in range(100)]
    with headrace.Producer(**client) as producer:
        for row in rows[:50]:
            producer.send(topic, row)
        producer.send_table(topic, pa.Table.from_pylist(rows[50:]))
        with pytest.raises(SerializationError, match=r"the key of keyed-.* is user"):
            producer.send(topic, rows[0], key=b"k")
    with headrace.Reader(topic, **client) as reader:
        found = list(reader)
    assert sorted(record.value["n"] for record in found) == list(range(100))
    assert all(record.key == record.value["user"].encode() for record in found)
    places: dict[bytes, set[int]] = {}
    for record in found:
        places.setdefault(record.key, set()).add(record.partition)
    assert {len(each) for each in places.values()} == {1}


@dataclasses.dataclass
class Visit:
    """Source of columns."""

    page: str
    user: int | None
    seconds: float


def test_columns_from_a_class_and_from_nothing_read(cluster, client):
    """A dataclass makes columns; an empty topic is read as a table with them."""
    topic = f"visits-{client['transport']}"
    with headrace.Admin(**client) as admin:
        admin.create_topic(topic, partitions=1, columns=Visit)
    with headrace.Reader(topic, **client) as reader:
        empty = reader.to_arrow()
    assert empty.schema == pa.schema(
        [
            pa.field("page", pa.string(), nullable=False),
            pa.field("user", pa.int64()),
            pa.field("seconds", pa.float64(), nullable=False),
        ]
    )

    async def both():
        async with aio.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_table(topic, pa.table({"page": ["/a"], "user": [1], "seconds": [0.5]}))
        async with aio.Reader(topic, bootstrap_servers=cluster.bootstrap_servers) as reader:
            return [record.value async for record in reader]

    assert asyncio.run(both()) == [dataclasses.asdict(Visit("/a", 1, 0.5))]


def typed_batch(text, columns):
    blocks = [block_of_array(pa.array([1, 2], pa.int64()), parse_type("int64")) for _ in range(columns)]
    return b"".join(column_parts(RowBlocks(text, blocks, 2), base_timestamp_ms=int(time.time() * 1000)))


def test_what_a_broker_refuses(client):
    """Bytes in a typed topic, rows in another one, and columns that the topic does not have."""
    typed, plain = f"refuses-{client['transport']}", f"bytes-{client['transport']}"
    with headrace.Admin(**client) as admin:
        admin.create_topic(typed, partitions=1, columns="a int64 required, b int64")
        admin.create_topic(plain, partitions=1)
        for topic, batch, error, message in (
            (typed, encode_batch([b"x"], base_timestamp_ms=int(time.time() * 1000)), InvalidRequestError, "is typed"),
            (plain, typed_batch("1 a int64", 1), InvalidRequestError, "the topic is not typed"),
            (typed, typed_batch("2 b int64", 1), ConflictError, "the required column a is missing"),
            (typed, typed_batch("1 a int64 required, 2 b string", 2), InvalidRequestError, "column b is string"),
            (typed, typed_batch("1 a int64 required, 3 c int64", 2), ConflictError, "has no column 3"),
        ):
            with pytest.raises(error, match=message):
                produce(client, topic, batch)
        produce(client, typed, typed_batch("1 a int64 required", 1))
        with pytest.raises(InvalidConfigError, match="a topic is typed, or not, from its creation on"):
            admin.alter_config(typed, unset=["columns"])
        with pytest.raises(InvalidConfigError, match="a topic is typed, or not, from its creation on"):
            admin.alter_config(plain, {"columns": "a int64"})
        with pytest.raises(InvalidConfigError, match="rows are not compacted"):
            admin.create_topic("no", columns="a int64", config={"cleanup_policy": "compact"})
        with pytest.raises(InvalidConfigError, match="rows are not compacted"):
            admin.alter_config(typed, {"cleanup_policy": "compact"})
    with headrace.Producer(**client) as producer:
        with pytest.raises(headrace.SerializationError, match="is a typed topic with the columns"):
            producer.send(typed, None)


def test_a_batch_of_rows_with_an_unknown_flag_is_refused(client, topic, monkeypatch):
    """As by a broker from before typed topics: an error that names the flag, over either transport; nothing is kept."""
    newer = functools.partial(column_parts, flags=BatchFlags(1 << 10))
    with monkeypatch.context() as patched, pytest.raises(headrace.DeliveryError):
        patched.setattr("headrace.client.producer.rows.column_parts", newer)
        with headrace.Producer(**client) as producer:
            with pytest.raises(CorruptBatchError, match="reserved flags are set: 0x0400"):
                producer.send(topic, {"page": "/a"}, partition=0).result(timeout=30)
    with headrace.Producer(**client) as producer:
        assert producer.send(topic, {"page": "/b"}, partition=0).result(timeout=30).offset == 0
    with headrace.Reader(topic, columns=["page"], **client) as reader:
        assert reader.to_arrow().column("page").to_pylist() == ["/b"]


def test_a_batch_whose_columns_lie_about_their_lengths(client):
    """The reader's error names its offset; the other batches are read."""
    topic, now = f"lies-{client['transport']}", int(time.time() * 1000)
    with headrace.Admin(**client) as admin:
        admin.create_topic(topic, partitions=1, columns="a string")
    block = block_of_array(pa.array(["abc", "de"]), parse_type("string"))
    good = b"".join(column_parts(RowBlocks("1 a string", [block], 2), base_timestamp_ms=now))
    offsets = [struct.pack("<3i", *ends) for ends in ((0, 3, 5), (0, 5, 3))]
    assert good.count(offsets[0]) == 1
    for batch in (good, resealed(bytearray(good.replace(*offsets))), good):
        produce(client, topic, batch)
    with headrace.Reader(topic, **client) as reader, pytest.raises(CorruptBatchError, match="column a") as raised:
        reader.to_arrow()
    assert (raised.value.base_offset, raised.value.next_offset) == (2, 4)
    with headrace.Reader(topic, on_corrupt_batch="skip", **client) as reader:
        found = reader.to_arrow()
    assert found.column("a").to_pylist() == ["abc", "de"] * 2


def produce(client, topic, batch):
    """Send one encoded batch as it is."""
    part = broker_pb2.PartitionProduce(partition=0, batches=[batch])
    request = broker_pb2.ProduceRequest(
        acks=broker_pb2.ACKS_ALL,
        timeout_ms=10_000,
        topics=[broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=topic), partitions=[part])],
    )
    if IS_ON:
        found = produce_to_directory(client["bootstrap_servers"], request).topics[0].partitions[0]
    else:
        with headrace.Admin(**client) as admin:
            (address,) = [broker.address for broker in admin.describe_cluster().brokers]
        with grpc.insecure_channel(address) as channel:
            found = until(lambda: _answer(channel, request), "the broker leads")
    if found.HasField("error"):
        raise from_detail(found.error)


def _answer(channel, request):
    """Return the result of the one partition; `None` while the broker does not know or lead it yet."""
    answer = broker_pb2_grpc.BrokerServiceStub(channel).Produce(request, timeout=20)
    (found,) = answer.topics[0].partitions
    is_early = isinstance(from_detail(found.error), UnknownTopicError | NotLeaderError | LeaderNotAvailableError)
    return None if is_early else found


def test_other_languages_read_json(client, topic):
    """The simple form of a fetch has each row as a JSON object, and so has that of a produce."""
    with headrace.Producer(**client) as producer:
        producer.send(topic, {"page": "/a", "user": 7}, partition=0).result()
    with headrace.Admin(**client) as admin:
        (address,) = [broker.address for broker in admin.describe_cluster().brokers]
    part = broker_pb2.PartitionFetch(partition=0, offset=0, max_bytes=1 << 20)
    request = broker_pb2.FetchRequest(
        max_bytes=1 << 20,
        as_records=True,
        topics=[broker_pb2.TopicFetch(topic=topics_pb2.TopicRef(name=topic), partitions=[part])],
    )
    with grpc.insecure_channel(address) as channel:
        answer = broker_pb2_grpc.BrokerServiceStub(channel).Fetch(request, timeout=20)
    (record,) = answer.topics[0].partitions[0].records
    assert json.loads(record.value) == {"page": "/a", "user": 7, "at": None, "tags": None, "country": "DE"}
    row = {"page": "/b", "user": None, "at": "2026-01-02T03:04:05.678000+00:00", "tags": ["x"], "country": "FR"}
    produced = broker_pb2.PartitionProduce(
        partition=0, records=[record, topics_pb2.Record(value=json.dumps(row).encode())]
    )
    request = broker_pb2.ProduceRequest(
        acks=broker_pb2.ACKS_ALL,
        timeout_ms=20_000,
        topics=[broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=topic), partitions=[produced])],
    )
    with grpc.insecure_channel(address) as channel:
        answer = broker_pb2_grpc.BrokerServiceStub(channel).Produce(request, timeout=20)
    assert not answer.topics[0].partitions[0].HasField("error"), answer
    with headrace.Reader(topic, partitions=[0], **client) as reader:
        rows = [found.value for found in reader]
    assert rows[0] == rows[1]
    assert rows[2] == {**row, "at": dt.datetime.fromisoformat(row["at"])}


def test_handlers_get_rows_and_dead_letters_are_json(client, topic):
    """A handler is given dicts; a row that fails goes to the dead-letter topic as JSON."""
    letters = f"letters-{client['transport']}"
    with headrace.Admin(**client) as admin:
        admin.create_topic(letters, partitions=1)
    with headrace.Producer(**client) as producer:
        for user in range(10):
            producer.send(topic, {"page": "/a", "user": user}, partition=user % 2)
    seen = []

    def handle(record):
        if record.value["user"] == 7:
            raise ValueError("seven")
        seen.append(record.value["user"])
        if len(seen) == 9:
            consumer.stop()

    settings = {"group_id": f"h-{topic}", "auto_offset_reset": "earliest", **client}
    with headrace.Consumer(topic, **settings) as consumer:
        consumer.run(handle, retry=headrace.RetryPolicy(attempts=1), dead_letter=letters, handle_signals=False)
    assert sorted(seen) == [user for user in range(10) if user != 7]

    def letter():
        with headrace.Reader(letters, **client) as reader:
            return list(reader)

    (found,) = until(letter, "the dead letter is there")
    assert json.loads(found.value) == {"page": "/a", "user": 7, "at": None, "tags": None, "country": "DE"}


def test_rows_on_the_command_line(cluster, client, topic, tmp_path):
    """Rows go in as JSON lines and come out the same; a wrong one is named by its line."""

    def run(*arguments):
        return command_line(cluster, *arguments)

    rows = [
        {"page": "/a", "user": 7, "at": "2026-01-02T03:04:05.678000+00:00", "tags": ["x", None], "country": "FR"},
        {"page": "/b", "user": None, "at": None, "tags": None, "country": None},
    ]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sent = run("produce", topic, "-p", "0", "--input", "rows", str(lines))
    assert (sent.returncode, "produced 2 records" in sent.stderr) == (0, True), sent.stderr
    found = run("consume", topic, "-e", "--output", "raw")
    assert [json.loads(line) for line in found.stdout.splitlines()] == rows
    found = run("consume", topic, "-e", "--output", "json")
    assert [json.loads(line)["value"] for line in found.stdout.splitlines()] == rows
    found = run("consume", topic, "-e", "--output", "table")
    assert [line.split()[3:] for line in found.stdout.splitlines()] == [
        ["page", "user", "at", "tags", "country"],
        ["/a", "7", "2026-01-02T03:04:05.678000+00:00", '["x",', "null]", "FR"],
        ["/b", "-", "-", "-", "-"],
    ]
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    with command_on_terminal("consume", topic, "-e", *servers) as terminal:
        assert terminal.rest() == found.stdout, "a terminal gets the table without being asked to"
    with command_on_terminal("consume", topic, "-e", "--output", "raw", *servers) as terminal:
        assert [json.loads(line) for line in terminal.rest().splitlines()] == rows
    lines.write_text('{"page": "/a"}\n{"page": "/a", "at": "noon"}\n')
    wrong = run("produce", topic, "-p", "0", "--input", "rows", str(lines))
    assert wrong.returncode == 1
    assert "rows.jsonl:2: column at: 'noon' is no timestamp[ms, UTC]" in wrong.stderr
