"""The SDK's codecs and `headrace schema`, against a real registry and together with Confluent's serializers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from headrace import Admin, Consumer, Producer, SerializationError, TransportError, schemas
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
