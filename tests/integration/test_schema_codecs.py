"""The SDK's codecs and `headrace schema`, against a real registry and together with Confluent's serializers."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from headrace import (
    Admin,
    ConfigError,
    Consumer,
    Producer,
    Reader,
    RetryPolicy,
    SerializationError,
    TransportError,
    schemas,
)
from headrace.v1 import cluster_pb2, handshake_pb2
from headrace_devcluster.cluster import LocalCluster

ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
WITH_COUNT = {**ORDER, "fields": [*ORDER["fields"], {"name": "count", "type": "int", "default": 1}]}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture
def registry(headrace_cluster: LocalCluster) -> schemas.SchemaRegistry:
    return schemas.SchemaRegistry(headrace_cluster.schema_registry_urls[0])


def test_records_have_a_schema_from_producer_to_consumer(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """A producer writes with one version, and a consumer reads with the next one, which has a default."""
    subject = f"{topic_name}-value"
    registry.register(subject, json.dumps(ORDER), "AVRO")
    servers = headrace_cluster.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name)
    with Producer(bootstrap_servers=servers, value_serializer=schemas.Avro(registry, subject=subject)) as producer:
        producer.send(topic_name, {"item": "tea"}).result(30)
    reader = schemas.Avro(registry, WITH_COUNT)
    with Consumer(
        topic_name, bootstrap_servers=servers, auto_offset_reset="earliest", value_deserializer=reader
    ) as consumer:
        assert next(iter(consumer)).value == {"item": "tea", "count": 1}


def test_codecs_read_and_write_as_those_of_confluent(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    context = SerializationContext(topic_name, MessageField.VALUE)
    subject = f"{topic_name}-value"
    with SchemaRegistryClient({"url": headrace_cluster.schema_registry_urls[0]}) as client:
        theirs = AvroSerializer(client, json.dumps(ORDER))({"item": "tea"}, context)
        ours = schemas.Avro(registry, ORDER, subject=subject)
        assert ours.serialize({"item": "tea"}) == theirs
        assert ours.deserialize(theirs) == AvroDeserializer(client)(theirs, context) == {"item": "tea"}
        people = schemas.JsonSchema(registry, PERSON, subject=f"{subject}.json", auto_register=True)
        data = people.serialize({"name": "Ada"})
        assert people.deserialize(data) == {"name": "Ada"}
        assert JSONDeserializer(json.dumps(PERSON))(data, context) == {"name": "Ada"}
        for message, theirs_of in (
            (handshake_pb2.Handshake(), "first message of its file"),
            (cluster_pb2.CreateTopicResult(name="t"), "another message of its file"),
        ):
            of_topic = SerializationContext(f"{topic_name}.{type(message).__name__}", MessageField.VALUE)
            theirs = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})(message, of_topic)
            references = [
                schemas.SchemaReference(each.name, each.subject, each.version)
                for each in client.get_latest_version(f"{of_topic.topic}-value").schema.references or ()
            ]
            codec = schemas.Protobuf(registry, type(message), subject=f"{of_topic.topic}-value", references=references)
            assert codec.serialize(message) == theirs, theirs_of
            assert codec.deserialize(theirs) == message
            assert ProtobufDeserializer(type(message), {"use.deprecated.format": False})(theirs, of_topic) == message


def test_errors_name_the_schema_and_what_does_not_fit(registry: schemas.SchemaRegistry, topic_name: str) -> None:
    codec = schemas.Avro(registry, ORDER, subject=topic_name)
    with pytest.raises(SerializationError, match="has not got the schema") as refused:
        codec.serialize({"item": "tea"})
    assert "headrace schema register" in refused.value.action
    schema_id = registry.register(topic_name, json.dumps(ORDER), "AVRO")
    with pytest.raises(SerializationError, match=f"does not fit schema {schema_id} "):
        codec.serialize({"other": 1})
    with pytest.raises(SerializationError, match=f"do not fit schema {schema_id}"):
        codec.deserialize(b"\0" + schema_id.to_bytes(4, "big") + b"\xff")
    with pytest.raises(SerializationError, match=f"schema {schema_id} has type AVRO"):
        schemas.JsonSchema(registry).deserialize(codec.serialize({"item": "tea"}))
    with pytest.raises(SerializationError, match="do not begin with 0"):
        codec.deserialize(b"{}")
    with pytest.raises(schemas.SchemaRegistryError, match="999999") as missing:
        codec.deserialize(b"\0" + (999_999).to_bytes(4, "big"))
    assert missing.value.error_code == 40403
    people = schemas.JsonSchema(registry, PERSON, subject=f"{topic_name}.json", auto_register=True)
    with pytest.raises(SerializationError, match="'name' is a required property"):
        people.serialize({})


def test_known_schemas_go_on_without_the_registry(own_cluster: Callable[..., LocalCluster]) -> None:
    """Ids that a codec has seen are served from memory while no coordinator runs; a new one names the registry."""
    cluster = own_cluster(brokers=1)
    registry = schemas.SchemaRegistry(cluster.schema_registry_urls[0])
    codec = schemas.Avro(registry, ORDER, subject="s", auto_register=True)
    data = codec.serialize({"item": "tea"})
    assert codec.deserialize(data) == {"item": "tea"}
    cluster.coordinators[0].kill()
    assert codec.serialize({"item": "tea"}) == data
    assert codec.deserialize(data) == {"item": "tea"}
    with pytest.raises(TransportError, match="cannot be reached"):
        codec.deserialize(b"\0\0\0\0\7")


def test_command_line(headrace_cluster: LocalCluster, topic_name: str, tmp_path: Path) -> None:
    """Register, list, get, check, diff and delete, each with its JSON and its exit code."""
    subject = f"{topic_name}-value"
    files = {"old": ORDER, "new": WITH_COUNT, "bad": ORDER | {"fields": [{"name": "x", "type": "int"}]}}
    for name, schema in files.items():
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))

    url = headrace_cluster.schema_registry_urls[0]

    def run(*arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "schema", *arguments, "--output", "json", "--registry", url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    code, made = run("register", subject, str(tmp_path / "old.avsc"))
    assert (code, made["subject"]) == (0, subject)
    assert run("check", subject, str(tmp_path / "new.avsc")) == (0, {"compatible": True, "reasons": []})
    code, checked = run("check", subject, str(tmp_path / "bad.avsc"))
    assert (code, checked["compatible"]) == (1, False)
    assert "'x'" in checked["reasons"][0]
    assert run("register", subject, str(tmp_path / "new.avsc"))[0] == 0
    code, listed = run("list", subject)
    assert [(row["version"], row["type"]) for row in listed] == [(1, "AVRO"), (2, "AVRO")]
    assert subject in {row["subject"] for row in run("list")[1]}
    assert json.loads(run("get", subject, "--version", "1")[1]["schema"]) == ORDER
    lines = run("diff", subject, "1", "2")[1]["lines"]
    assert '+      "name": "count",' in lines
    assert run("delete", subject, "--yes") == (0, {"subject": subject, "versions": [1, 2]})
    assert run("get", subject)[0] == 4
    assert run("delete", subject, "--permanent", "--yes")[0] == 0


VISIT = {
    "type": "record",
    "name": "Visit",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "user", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
    ],
}
WITH_COUNTRY = {**VISIT, "fields": [*VISIT["fields"][:2], {"name": "country", "type": "string", "default": "DE"}]}
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def visits(count: int) -> list[dict[str, Any]]:
    return [
        {
            "page": f"/{number}",
            "user": number if number % 2 else None,
            "at": NOON + dt.timedelta(milliseconds=number),
            "tags": {"n": number},
            "price": Decimal(number) / 4,
        }
        for number in range(count)
    ]


def test_avro_records_are_read_as_arrow_columns(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """A table has the fields as columns, by the reader's schema where one is given; a null value is a row of null."""
    subject, servers = f"{topic_name}-value", headrace_cluster.bootstrap_servers
    registry.register(subject, json.dumps(VISIT), "AVRO")
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name)

    def table(*arguments: Any) -> Any:
        codec = schemas.Avro(registry, *arguments)
        with Reader(topic_name, bootstrap_servers=servers, value_deserializer=codec) as reader:
            return reader.to_arrow()

    assert table(VISIT).schema.names == ["page", "user", "at", "tags", "price"], "of no records yet"
    rows = visits(200)
    with Producer(bootstrap_servers=servers, value_serializer=schemas.Avro(registry, subject=subject)) as producer:
        for row in rows:
            producer.send(topic_name, row)
        producer.send(topic_name, None)
    found = table()
    assert found.schema.field("price").type == pa.decimal128(9, 2)
    assert found.schema.field("at").type == pa.timestamp("ms", "UTC")
    listed = found.to_pylist(maps_as_pydicts="strict")
    assert (listed[:-1], set(listed[-1].values())) == (rows, {None})
    newer = table(WITH_COUNTRY)
    assert newer.to_pylist()[:200] == [{"page": row["page"], "user": row["user"], "country": "DE"} for row in rows]
    codec = schemas.Avro(registry)
    with Reader(topic_name, bootstrap_servers=servers, value_deserializer=codec) as reader:
        batch = next(iter(reader.batches()))
    assert batch.to_arrow(["_offset", "user"]).to_pydict() == {
        "_offset": list(range(len(batch))),
        "user": [row["user"] for row in rows][: len(batch)] + [None] * (len(batch) - 200),
    }
    assert batch.to_pandas().columns.tolist() == found.schema.names


def test_an_avro_record_that_does_not_fit_has_its_place(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """The error of a table names the partition and the offset."""
    servers = headrace_cluster.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic_name, b"no schema")
    codec = schemas.Avro(registry, VISIT)
    with Reader(topic_name, bootstrap_servers=servers, value_deserializer=codec) as reader:
        with pytest.raises(SerializationError, match=rf"value of {topic_name}-0 at offset 0 .*do not begin") as raised:
            reader.to_arrow()
    assert raised.value.offset == 0
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    schema = {"type": "record", "name": "P", "fields": [{"name": "price", "type": price}]}
    schema_id = registry.register(topic_name, json.dumps(schema), "AVRO")
    codec = schemas.Avro(registry, subject=topic_name)
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic_name, codec.serialize({"price": Decimal("1.5")})).result(60)
        producer.send(topic_name, b"\0" + schema_id.to_bytes(4, "big") + b"\4\x7f\xff").result(60)
    with Reader(topic_name, start=1, bootstrap_servers=servers, value_deserializer=codec) as reader:
        with pytest.raises(SerializationError, match=rf"value of {topic_name}-0 at offset 2 .*column price") as raised:
            reader.to_arrow()
    assert raised.value.offset == 2


def test_a_typed_topic_has_the_columns_of_a_schema(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """By the SDK with a subject or a schema, and on the command line; rows that a schema describes fit."""
    subject, servers = f"{topic_name}-value", headrace_cluster.bootstrap_servers
    registry.register(subject, json.dumps(VISIT), "AVRO")
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name, columns=schemas.Avro(registry, subject=subject))
        admin.create_topic(f"{topic_name}-given", columns=schemas.Avro(registry, VISIT))
        text = admin.describe_config(topic_name)["columns"].value
        assert text == admin.describe_config(f"{topic_name}-given")["columns"].value
        with pytest.raises(ConfigError, match="SchemaRegistry has no columns"):
            admin.create_topic(f"{topic_name}-none", columns=registry)
    assert text == (
        "1 page string required, 2 user int32, 3 at timestamp[ms, UTC] required, 4 tags map<string, int64> required, "
        "5 price decimal(9, 2)"
    )
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(topic_name, visits(2)[1]).result(60)
    command = [sys.executable, "-m", "headrace.cli", "topic", "create", f"{topic_name}-cli", "-b", servers]
    command += ["--columns", f"schema:{subject}", "--registry", headrace_cluster.schema_registry_urls[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.describe_config(f"{topic_name}-cli")["columns"].value == text


SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "place.proto";
message Order { string item = 1; google.protobuf.Timestamp at = 2; Place place = 3; }
message Other { int32 x = 1; }
"""


def test_columns_of_json_schema_and_protobuf(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """A typed topic has those of a subject of either format; values in them are read as columns."""
    servers = headrace_cluster.bootstrap_servers
    people, orders = (
        schemas.JsonSchema(registry, PERSON, subject=f"{topic_name}.json", auto_register=True),
        f"{topic_name}.p",
    )
    people.serialize({"name": "Ada"})
    registry.register(
        f"{topic_name}.place", 'syntax = "proto3"; package shop; message Place { double lat = 1; }', "PROTOBUF"
    )
    reference = schemas.SchemaReference("place.proto", f"{topic_name}.place", 1)
    registry.register(orders, SHOP, "PROTOBUF", [reference])
    texts = {
        f"{topic_name}.json": "1 name string required",
        orders: '1 item string required default "", 2 at timestamp[us, UTC], 3 place struct<lat: double>',
    }
    for subject, text in texts.items():
        command = [sys.executable, "-m", "headrace.cli", "topic", "create", f"{subject}-typed", "-b", servers]
        command += ["--columns", f"schema:{subject}", "--registry", headrace_cluster.schema_registry_urls[0]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        with Admin(bootstrap_servers=servers) as admin:
            assert admin.describe_config(f"{subject}-typed")["columns"].value == text
    results = schemas.Protobuf(registry, cluster_pb2.CreateTopicResult, subject=f"{topic_name}.r")
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name)
        admin.create_topic(f"{topic_name}-r", columns=results)
        assert "name string required" in admin.describe_config(f"{topic_name}-r")["columns"].value
    with Producer(bootstrap_servers=servers, value_serializer=people) as producer:
        for name in ("Ada", "Bob"):
            producer.send(topic_name, {"name": name, "age": 7})
        producer.send(topic_name, None)
    with Reader(topic_name, bootstrap_servers=servers, value_deserializer=people) as reader:
        assert reader.to_arrow().to_pydict() == {"name": ["Ada", "Bob", None]}


def test_a_value_that_does_not_fit_becomes_a_dead_letter(
    headrace_cluster: LocalCluster, registry: schemas.SchemaRegistry, topic_name: str
) -> None:
    """A handler goes past it; the dead letter has the bytes, and the reason with the id of the schema."""
    servers = headrace_cluster.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic_name)
        admin.create_topic(f"{topic_name}.dead")
    codec = schemas.Avro(registry, ORDER, subject=topic_name, auto_register=True)
    good = codec.serialize({"item": "tea"})
    with Producer(bootstrap_servers=servers) as producer:
        for value in (good, good[:-1], good):
            producer.send(topic_name, value, partition=0).result(60)
    handled: list[Any] = []
    with Consumer(
        topic_name,
        bootstrap_servers=servers,
        group_id=topic_name,
        auto_offset_reset="earliest",
        value_deserializer=codec,
    ) as consumer:

        def handle(record: Any) -> None:
            handled.append(record.value)
            if len(handled) == 2:
                consumer.stop()

        retry = RetryPolicy(attempts=2, backoff_ms=1)
        consumer.run(handle, retry=retry, dead_letter=f"{topic_name}.dead", concurrency=1)
    assert handled == [{"item": "tea"}] * 2
    with Reader(f"{topic_name}.dead", bootstrap_servers=servers) as reader:
        (letter,) = reader
    schema_id = int.from_bytes(good[1:5], "big")
    assert letter.value == good[:-1]
    assert f"do not fit schema {schema_id}" in dict(letter.headers)["headrace.dead_letter.message"].decode()
