"""The schema registry through Confluent's own clients, unchanged, against real coordinators and a real etcd."""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from headrace.v1 import cluster_pb2, errors_pb2
from headrace_coordinator.rpc.schema_requests import SchemaRequests
from headrace_devcluster.cluster import LocalCluster
from headrace_server.identity.rights import ROLES, Operation

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
WITH_COUNT = {**ORDER, "fields": [*ORDER["fields"], {"name": "count", "type": "int", "default": 1}]}
WITH_PRICE = {**ORDER, "fields": [*ORDER["fields"], {"name": "price", "type": "double"}]}


def avro(schema: Any) -> Schema:
    return Schema(json.dumps(schema), "AVRO")


@pytest.fixture
def registry(headrace_cluster: LocalCluster) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": headrace_cluster.schema_registry_urls[0]}) as client:
        yield client


@pytest.fixture
def subject(topic_name: str) -> str:
    return f"{topic_name}-value"


def send(url: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Send one request and return the status and the JSON of its answer."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_avro_serializer_round_trip(registry: SchemaRegistryClient, topic_name: str) -> None:
    serializer = AvroSerializer(registry, json.dumps(ORDER))
    context = SerializationContext(topic_name, MessageField.VALUE)
    data = serializer({"item": "tea"}, context)
    assert data[0] == 0
    assert AvroDeserializer(registry, json.dumps(WITH_COUNT))(data, context) == {"item": "tea", "count": 1}


def test_json_serializer_round_trip(registry: SchemaRegistryClient, topic_name: str) -> None:
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"item": {"type": "string"}}})
    context = SerializationContext(topic_name, MessageField.VALUE)
    data = JSONSerializer(schema, registry)({"item": "tea"}, context)
    assert JSONDeserializer(schema, schema_registry_client=registry)(data, context) == {"item": "tea"}


def test_protobuf_serializer_round_trip_with_references(registry: SchemaRegistryClient, topic_name: str) -> None:
    """The serializer registers the files that a message's file imports, each as a subject of its own."""
    message = cluster_pb2.CreateTopicsResponse(topics=[cluster_pb2.CreateTopicResult(name="t")])
    context = SerializationContext(topic_name, MessageField.VALUE)
    data = ProtobufSerializer(type(message), registry, {"use.deprecated.format": False})(message, context)
    assert ProtobufDeserializer(type(message), {"use.deprecated.format": False})(data, context) == message
    reader = ProtobufDeserializer(type(message), {"use.deprecated.format": False}, registry)
    assert reader(data, context) == message
    latest = registry.get_latest_version(f"{topic_name}-value")
    names = {reference.name for reference in latest.schema.references}
    assert names == {dependency.name for dependency in cluster_pb2.DESCRIPTOR.dependencies}
    assert errors_pb2.DESCRIPTOR.name in registry.get_subjects()


def test_text_and_descriptor_of_a_proto_are_one_schema(registry: SchemaRegistryClient, subject: str) -> None:
    """A .proto file as text, as other languages send it, is the schema that Python sends as a descriptor."""
    text = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";\n'
    text += "message Order { string item_name = 1; google.protobuf.Timestamp at = 2; }"
    schema_id = registry.register_schema(subject, Schema(text, "PROTOBUF"))
    registry.clear_caches()
    assert registry.get_schema(schema_id).schema_str == text
    registry.clear_caches()
    serialized = registry.get_schema(schema_id, fmt="serialized").schema_str
    registry.clear_caches()
    assert registry.register_schema(subject, Schema(serialized, "PROTOBUF")) == schema_id


def test_equal_schemas_share_an_id_over_subjects(registry: SchemaRegistryClient, subject: str) -> None:
    first = registry.register_schema(subject, avro(ORDER | {"name": "Shared"}))
    spaced = Schema(json.dumps(ORDER | {"name": "Shared"}, indent=3, sort_keys=True), "AVRO")
    assert registry.register_schema(f"{subject}.other", spaced) == first
    assert registry.get_subjects_by_schema_id(first) == sorted([subject, f"{subject}.other"])
    assert [each.version for each in registry.get_schema_versions(first)] == [1, 1]
    assert registry.lookup_schema(subject, spaced).version == 1
    assert registry.get_schema_by_guid(registry.lookup_schema(subject, spaced).guid).schema_str


def test_versions_and_deletions(registry: SchemaRegistryClient, subject: str) -> None:
    ids = [registry.register_schema(subject, avro(schema)) for schema in (ORDER, WITH_COUNT)]
    assert registry.get_versions(subject) == [1, 2]
    assert registry.get_latest_version(subject).schema_id == ids[1]
    assert registry.delete_version(subject, 1) == 1
    assert registry.get_versions(subject) == [2]
    assert registry.get_version(subject, 1, deleted=True).schema_id == ids[0]
    assert registry.delete_subject(subject) == [2]
    assert subject not in registry.get_subjects()
    assert subject in registry.get_subjects(deleted=True)
    registry.clear_caches()
    assert registry.register_schema(subject, avro(WITH_COUNT)) == ids[1]
    assert registry.get_versions(subject) == [3]
    registry.delete_subject(subject)
    assert registry.delete_subject(subject, permanent=True) == [1, 2, 3]
    assert subject not in registry.get_subjects(deleted=True)


def test_incompatible_schema_is_refused_with_rule_and_field(registry: SchemaRegistryClient, subject: str) -> None:
    registry.register_schema(subject, avro(ORDER))
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema(subject, avro(WITH_PRICE))
    assert refused.value.http_status_code == refused.value.error_code == 409
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.value.error_message
    assert "'price'" in refused.value.error_message
    assert not registry.test_compatibility(subject, avro(WITH_PRICE))
    assert registry.test_compatibility(subject, avro(WITH_COUNT))
    registry.set_compatibility(subject, "FORWARD")
    assert registry.get_compatibility(subject) == "FORWARD"
    assert registry.test_compatibility_all_versions(subject, avro(WITH_PRICE))
    assert registry.register_schema(subject, avro(WITH_PRICE))


def test_check_names_every_reason(registry: SchemaRegistryClient, headrace_cluster: LocalCluster, subject: str) -> None:
    registry.register_schema(subject, avro(ORDER))
    url = f"{headrace_cluster.schema_registry_urls[0]}/compatibility/subjects/{subject}/versions/latest?verbose=true"
    status, answer = send(url, "POST", {"schema": json.dumps(WITH_PRICE)})
    assert (status, answer["is_compatible"]) == (200, False)
    assert "'price'" in answer["messages"][0]
    assert answer["messages"][-1] == "{compatibility: 'BACKWARD'}"


def schema_of(schema_type: str, *fields: str) -> str:
    """Return a record of text fields that are all needed; in Protobuf a file without messages of the names."""
    match schema_type:
        case "AVRO":
            made = [{"name": name, "type": "string"} for name in fields]
            return json.dumps({"type": "record", "name": "M", "fields": made})
        case "JSON":
            properties = {name: {"type": "string"} for name in fields}
            return json.dumps({"type": "object", "properties": properties, "required": list(fields)})
    lines = [f"message {name} {{}}" for name in "abc" if name not in fields]
    return f'syntax = "proto3"; message M {{}} {" ".join(lines)}'


def names(reason: str) -> set[str]:
    """Return the fields and messages that a reason names."""
    return {name for pair in re.findall(r"'(\w)'|/(\w)\b", reason) for name in pair}


MODES: dict[str, list[tuple[str, int]]] = {
    # Version 1 lacks a field that the new schema needs, version 2 needs one that it lacks: who cannot read, and which.
    "NONE": [],
    "BACKWARD": [],
    "BACKWARD_TRANSITIVE": [("new", 1)],
    "FORWARD": [("old", 2)],
    "FORWARD_TRANSITIVE": [("old", 2)],
    "FULL": [("old", 2)],
    "FULL_TRANSITIVE": [("old", 2), ("new", 1)],
}


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
def test_seven_modes_of_each_format(
    registry: SchemaRegistryClient, headrace_cluster: LocalCluster, subject: str, schema_type: str
) -> None:
    """Each reason names who cannot read, the version and the field."""
    url, subject = headrace_cluster.schema_registry_urls[0], f"{subject}.{schema_type}"
    registry.set_compatibility(subject, "NONE")
    for fields in ("a", "abc"):
        registry.register_schema(subject, Schema(schema_of(schema_type, *fields), schema_type))
    found = {}
    for mode in MODES:
        registry.set_compatibility(subject, mode)
        body = {"schema": schema_of(schema_type, *"ab"), "schemaType": schema_type}
        _, answer = send(f"{url}/compatibility/subjects/{subject}/versions?verbose=true", "POST", body)
        reasons = answer["messages"][:-1]
        assert answer["is_compatible"] is not bool(reasons)
        parts = [re.search(r"the (old|new) schema cannot read.*version (\d) is", reason) for reason in reasons]
        found[mode] = list(dict.fromkeys((part[1], int(part[2])) for part in parts if part))
        assert all(("b" if part[1] == "new" else "c") in names(part.string) for part in parts if part), reasons
    assert found == MODES


def test_references_are_resolved_and_protected(registry: SchemaRegistryClient, subject: str) -> None:
    registry.register_schema(f"{subject}.base", avro(ORDER | {"name": "shop.Base"}))
    using = {"type": "record", "name": "shop.Using", "fields": [{"name": "base", "type": "shop.Base"}]}
    schema = Schema(json.dumps(using), "AVRO", [SchemaReference("shop.Base", f"{subject}.base", 1)])
    schema_id = registry.register_schema(subject, schema)
    assert registry.get_referenced_by(f"{subject}.base", 1) == [schema_id]
    for delete in (registry.delete_subject, lambda name: registry.delete_version(name, 1)):
        with pytest.raises(SchemaRegistryError) as refused:
            delete(f"{subject}.base")
        assert refused.value.error_code == 42206
    registry.delete_subject(subject)
    assert registry.delete_subject(f"{subject}.base") == [1]
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema(f"{subject}.x", Schema(json.dumps(using), "AVRO"))
    assert refused.value.error_code == 42201


def test_what_a_schema_refers_to_is_not_deleted_permanently(registry: SchemaRegistryClient, subject: str) -> None:
    """Neither if the schema was registered after the deletion, nor if it is deleted itself: its id stays readable."""
    base, using = f"{subject}.base", {"type": "record", "name": "k.Using", "fields": [{"name": "b", "type": "k.Base"}]}
    registry.register_schema(base, avro(ORDER | {"name": "k.Base"}))
    assert registry.delete_subject(base) == [1]
    schema = Schema(json.dumps(using), "AVRO", [SchemaReference("k.Base", base, 1)])
    registry.register_schema(subject, schema)
    deletions: list[Callable[[], Any]] = [
        lambda: registry.delete_subject(base, permanent=True),
        lambda: registry.delete_version(base, 1, permanent=True),
    ]
    for is_deleted in (False, True):
        if is_deleted:
            registry.delete_subject(subject)
        for delete in deletions:
            with pytest.raises(SchemaRegistryError) as refused:
                delete()
            assert refused.value.error_code == 42206
        registry.clear_caches()
        assert registry.get_version(base, 1, deleted=True)
    assert registry.delete_subject(subject, permanent=True) == [1]
    assert registry.delete_subject(base, permanent=True) == [1]
    registry.set_compatibility(subject, "NONE")
    registry.register_schema(subject, avro(ORDER | {"name": "k.Base"}))
    own = Schema(json.dumps(using), "AVRO", [SchemaReference("k.Base", subject, 1)])
    assert registry.register_schema(subject, own)
    assert registry.delete_subject(subject) == registry.delete_subject(subject, permanent=True) == [1, 2]


def test_lists_have_pages(registry: SchemaRegistryClient, subject: str) -> None:
    """Each list begins at `offset` and has at most `limit` entries, all without one."""
    schema_id = registry.register_schema(f"{subject}.0", avro(ORDER | {"name": f"L{len(subject)}"}))
    for number in (1, 2):
        assert registry.register_schema(f"{subject}.{number}", avro(ORDER | {"name": f"L{len(subject)}"})) == schema_id
        registry.register_schema(f"{subject}.0", avro({**WITH_COUNT, "name": f"L{len(subject)}", "doc": str(number)}))
    names = [f"{subject}.{number}" for number in range(3)]
    assert registry.get_subjects(f"{subject}.", offset=1, limit=1) == names[1:2]
    assert registry.get_subjects(f"{subject}.", offset=1) == names[1:]
    assert registry.get_versions(names[0], offset=1, limit=1) == [2]
    assert registry.get_subjects_by_schema_id(schema_id, offset=2) == names[2:]
    assert [each.subject for each in registry.get_schema_versions(schema_id, limit=2)] == names[:2]
    assert registry.get_contexts(offset=1) == []


def test_modes(registry: SchemaRegistryClient, subject: str) -> None:
    registry.update_mode(subject, "READONLY")
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema(subject, avro(ORDER))
    assert refused.value.error_code == 42205
    assert registry.get_mode(subject) == "READONLY"
    assert registry.delete_mode(subject) == "READONLY"
    assert registry.get_global_mode() == "READWRITE"
    assert registry.register_schema(subject, avro(ORDER))


def test_import_keeps_ids_and_versions(headrace_cluster: LocalCluster, subject: str) -> None:
    url = headrace_cluster.schema_registry_urls[0]
    assert send(f"{url}/mode/{subject}", "PUT", {"mode": "IMPORT"})[0] == 200
    body = {"schema": json.dumps(ORDER | {"name": "Imported"}), "id": 1_000_007, "version": 5}
    status, answer = send(f"{url}/subjects/{subject}/versions", "POST", body)
    assert (status, answer["id"], answer["version"]) == (200, 1_000_007, 5)
    other = {"schema": json.dumps(WITH_COUNT | {"name": "Imported"}), "id": 1_000_007, "version": 6}
    status, answer = send(f"{url}/subjects/{subject}/versions", "POST", other)
    assert answer["error_code"] == 42205
    without_id = {"schema": json.dumps(WITH_COUNT | {"name": "Imported"})}
    status, answer = send(f"{url}/subjects/{subject}/versions", "POST", without_id)
    assert (answer["error_code"], "is in import mode" in answer["message"]) == (42205, True)


# method, path, body, error code
ERRORS: list[tuple[str, str, Any, int]] = [
    ("GET", "/nowhere", None, 404),
    ("PATCH", "/subjects", None, 405),
    ("GET", "/schemas/ids/999999", None, 40403),
    ("GET", "/schemas/ids/x", None, 40403),
    ("GET", "/schemas/guids/x", None, 40403),
    ("GET", "/subjects/{none}/versions", None, 40401),
    ("GET", "/subjects/{none}/versions/1", None, 40401),
    ("GET", "/subjects/{some}/versions/7", None, 40402),
    ("GET", "/subjects/{some}/versions/0", None, 42202),
    ("GET", "/subjects/{some}/versions/first", None, 42202),
    ("POST", "/subjects/{none}", {"schema": '"int"'}, 40401),
    ("POST", "/subjects/{some}", {"schema": '"int"'}, 40403),
    ("POST", "/subjects/{some}", {"schema": "{"}, 42201),
    ("POST", "/subjects/{some}/versions", {}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": "x", "schemaType": "XML"}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": '"int"', "references": [{}]}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": '"int"', "ruleSet": {"domainRules": []}}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": json.dumps("x" * 600_000)}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": '"int"', "id": 5}, 42205),
    ("POST", "/subjects/{some}/versions", {"schema": "syntax = 7", "schemaType": "PROTOBUF"}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": '{"type": 7}', "schemaType": "JSON"}, 42201),
    ("POST", "/subjects/{some}/versions", {"schema": '{"type": "object"}', "schemaType": "JSON"}, 409),
    ("POST", "/subjects/{some}/versions", b"[]", 400),
    ("POST", "/subjects/{some}/versions", b"x" * 3_000_000, 413),
    ("POST", "/subjects/:.ctx:a/versions", {"schema": '"int"'}, 42208),
    ("POST", "/compatibility/subjects/{none}/versions/1", {"schema": '"int"'}, 40401),
    ("DELETE", "/subjects/{none}", None, 40401),
    ("DELETE", "/subjects/{some}?permanent=true", None, 40405),
    ("DELETE", "/subjects/{some}/versions/1?permanent=true", None, 40407),
    ("DELETE", "/subjects/{gone}", None, 40404),
    ("DELETE", "/subjects/{gone}/versions/1", None, 40406),
    ("GET", "/config/{some}", None, 40408),
    ("PUT", "/config/{some}", {"compatibility": "MAYBE"}, 42203),
    ("PUT", "/config/{some}", {"compatibility": "FULL", "compatibilityGroup": "a"}, 42203),
    ("PUT", "/config", {"compatibility": "FULL", "overrideRuleSet": {"domainRules": []}}, 42203),
    ("DELETE", "/config/{some}", None, 40401),
    ("GET", "/mode/{some}", None, 40409),
    ("PUT", "/mode/{some}", {"mode": "MAYBE"}, 42204),
    ("PUT", "/mode/{some}", {"mode": "IMPORT"}, 42205),
    ("GET", "/schemas?limit=x", None, 400),
]


def test_errors_of_the_interface(registry: SchemaRegistryClient, headrace_cluster: LocalCluster, subject: str) -> None:
    """Every refused request has Confluent's code and its HTTP status."""
    names = {"some": f"{subject}.some", "gone": f"{subject}.gone", "none": f"{subject}.none"}
    for name in ("some", "gone"):
        registry.register_schema(names[name], avro(ORDER))
    registry.delete_subject(names["gone"])
    url = headrace_cluster.schema_registry_urls[0]
    found = []
    for method, path, body, _ in ERRORS:
        status, answer = send(url + path.format(**names), method, body)
        assert answer["message"]
        assert str(answer["error_code"]).startswith(str(status))
        found.append((method, path, body, answer["error_code"]))
    assert found == ERRORS


def test_two_coordinators_register_one_schema_at_once(own_cluster: Callable[..., LocalCluster]) -> None:
    """Concurrent registrations at two coordinators give equal schemas one id, and different ones different ids."""
    cluster = own_cluster(brokers=1, coordinators=2)
    urls = cluster.schema_registry_urls
    meet = threading.Barrier(8)

    def register(number: int) -> list[int]:
        """Register three schemas, at the other coordinator in another subject and order; return their ids."""
        url, ids = urls[number % 2], [0, 0, 0]
        meet.wait(20)
        for name in (0, 1, 2) if number % 2 else (2, 1, 0):
            body = {"schema": json.dumps(ORDER | {"name": f"R{name}"})}
            ids[name] = send(f"{url}/subjects/s{number % 2}/versions", "POST", body)[1].get("id", 0)
        return ids

    for url in urls[:1]:
        assert send(f"{url}/config", "PUT", {"compatibility": "NONE"})[0] == 200
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(register, range(8)))
    assert all(ids == found[0] for ids in found)
    assert len({*found[0]}) == 3
    assert [send(f"{urls[0]}/subjects/s{n}/versions")[1] for n in (0, 1)] == [[1, 2, 3], [1, 2, 3]]


def test_one_of_two_incompatible_schemas_wins(own_cluster: Callable[..., LocalCluster]) -> None:
    """Of schemas that are registered at once, each compatible with an empty subject alone, a subject gets one."""
    urls = own_cluster(brokers=1, coordinators=2).schema_registry_urls
    subjects = [f"s{number}" for number in range(10)]
    meet = threading.Barrier(2)

    def register(place: int) -> list[int]:
        """Register a record with a field of its own in each subject; return the statuses."""
        body = {"schema": json.dumps(ORDER | {"fields": [{"name": f"f{place}", "type": "int"}]})}
        statuses = []
        for subject in subjects:
            meet.wait(20)
            statuses.append(send(f"{urls[place]}/subjects/{subject}/versions", "POST", body)[0])
        return statuses

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(register, range(2)))
    for number, subject in enumerate(subjects):
        assert sorted(statuses[number] for statuses in found) == [200, 409]
        for url in urls:
            winner = next(place for place in (0, 1) if found[place][number] == 200)
            version = send(f"{url}/subjects/{subject}/versions/latest")[1]
            assert (version["version"], f"f{winner}" in version["schema"]) == (1, True)


def test_registry_survives_the_loss_of_a_coordinator(own_cluster: Callable[..., LocalCluster]) -> None:
    """The other coordinator has every schema, and registers further ones."""
    cluster = own_cluster(brokers=1, coordinators=2)
    urls = cluster.schema_registry_urls
    with SchemaRegistryClient({"url": ",".join(urls)}) as client:
        schema_id = client.register_schema("s", avro(ORDER))
        cluster.coordinators[0].kill()
        client.clear_caches()
        assert json.loads(client.get_schema(schema_id).schema_str) == ORDER
        assert client.register_schema("s", avro(WITH_COUNT)) == schema_id + 1
        cluster.restart(cluster.coordinators[0])
    with SchemaRegistryClient({"url": cluster.schema_registry_urls[0]}) as client:
        assert client.get_versions("s") == [1, 2]


def test_registry_survives_the_loss_of_a_coordinator_and_of_a_member_of_etcd(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    """At once; with one of two coordinators and two of three members schemas are read and registered."""
    cluster = own_cluster(brokers=1, coordinators=2, etcd_members=3)
    with SchemaRegistryClient({"url": ",".join(cluster.schema_registry_urls)}) as client:
        schema_id = client.register_schema("s", avro(ORDER))
        cluster.coordinators[0].kill()
        cluster.etcd_members[0].kill()
        client.clear_caches()
        assert client.get_schema(schema_id)
        assert client.register_schema("s", avro(WITH_COUNT)) == schema_id + 1
        cluster.etcd_members[1].kill()
        client.clear_caches()
        assert client.get_schema(schema_id + 1)


def test_writer_reads_its_write_at_once(registry: SchemaRegistryClient, subject: str) -> None:
    for number in range(20):
        schema_id = registry.register_schema(f"{subject}.{number}", avro(ORDER | {"name": f"W{number}"}))
        registry.clear_caches()
        assert registry.get_latest_version(f"{subject}.{number}").schema_id == schema_id
        assert registry.get_schema(schema_id)


def test_closed_cluster_refuses_strangers_and_other_users(own_cluster: Callable[..., LocalCluster]) -> None:
    """Identity is a user with an API key or a bearer token, over TLS; rights are those of `schema:` grants."""
    import headrace

    cluster = own_cluster(brokers=1, tls=True, identity=True)
    url = cluster.schema_registry_urls[0]
    certificates = cluster.certificates.client_settings()
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **cluster.client_settings) as admin:
        admin.create_user("ann")
        ann = admin.create_api_key("ann").secret
        admin.grant("ann", "writer", "schema:team.*")
    admin_key = (cluster.directory / "admin.key").read_text().strip()
    tls = {
        "url": url,
        "ssl.ca.location": certificates["ssl_cafile"],
        "ssl.certificate.location": certificates["ssl_certfile"],
        "ssl.key.location": certificates["ssl_keyfile"],
    }

    def refused_code(conf: dict[str, str], call: Callable[[SchemaRegistryClient], Any]) -> int:
        with SchemaRegistryClient({**tls, **conf}) as client:
            with pytest.raises(SchemaRegistryError) as refused:
                call(client)
            return int(refused.value.error_code)

    own = {"basic.auth.user.info": f"ann:{ann}"}
    with SchemaRegistryClient({**tls, **own}) as client:
        schema_id = client.register_schema("team.orders-value", avro(ORDER))
        assert client.get_schema(schema_id)
        assert client.get_subjects() == ["team.orders-value"]
    with SchemaRegistryClient({**tls, "basic.auth.user.info": f"admin:{admin_key}"}) as client:
        assert client.register_schema("other-value", avro(WITH_COUNT))
    assert refused_code(own, lambda client: client.register_schema("other-value", avro(ORDER))) == 40301
    assert refused_code(own, lambda client: client.get_latest_version("missing")) == 40301
    assert refused_code(own, lambda client: client.get_schema(schema_id + 1)) == 40301
    assert refused_code(own, lambda client: client.get_schema(9_999)) == 40301
    assert refused_code(own, lambda client: client.set_compatibility(level="NONE")) == 40301
    assert refused_code(own, lambda client: client.delete_subject("team.orders-value")) == 40301
    assert refused_code({"basic.auth.user.info": f"bob:{ann}"}, lambda client: client.get_subjects()) == 40101
    assert refused_code({"basic.auth.user.info": "ann:wrong"}, lambda client: client.get_subjects()) == 40101
    assert refused_code({}, lambda client: client.register_schema("team.a", avro(ORDER))) == 40301
    assert ann not in "".join(part.log_file.read_text() for part in cluster.parts)
    assert base64.b64encode(f"ann:{ann}".encode()).decode() not in cluster.coordinators[0].log_file.read_text()


def test_caller_without_identity_is_refused(own_cluster: Callable[..., LocalCluster]) -> None:
    """Every path needs an identity in a closed cluster, and a bearer token is one."""
    cluster = own_cluster(brokers=1, identity=True)
    url = cluster.schema_registry_urls[0]
    for path in ("/", "/subjects", "/config", "/schemas/ids/1", "/schemas/types"):
        status, answer = send(url + path)
        assert (status, answer["error_code"]) == (401, 40101)
    assert send(f"{url}/subjects", headers={"Authorization": "Basic !"})[0] == 401
    key = (cluster.directory / "admin.key").read_text().strip()
    assert send(f"{url}/subjects", headers={"Authorization": f"Bearer {key}"}) == (200, [])


RIGHTS = {
    "RegisterSchema": Operation.WRITE,
    "DeleteSubject": Operation.DELETE,
    "DeleteVersion": Operation.DELETE,
    "SetCompatibility": Operation.ALTER,
    "SetMode": Operation.ALTER,
}
"""Rights of operations on a subject; that of all others is `describe`."""
FOR_ALL = {
    "GetRegistry",
    "ListSchemaTypes",
    "ListContexts",
    "ListSchemas",
    "ListSubjects",
    "GetCompatibility",
    "GetMode",
}
"""Operations that every caller with an identity may do where they name no subject; lists show what it may describe."""


def test_every_route_needs_its_right(own_cluster: Callable[..., LocalCluster]) -> None:
    """Each route is called with each role on all subjects, without any grant, and with rights to other subjects."""
    import headrace

    cluster = own_cluster(brokers=1, identity=True)
    url, keys = cluster.schema_registry_urls[0], {}
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers, **cluster.client_settings) as admin:
        for user in (*ROLES, "none", "neighbour"):
            admin.create_user(f"as-{user}")
            keys[user] = admin.create_api_key(f"as-{user}").secret
            if user in ROLES:
                admin.grant(f"as-{user}", user, "schema:*")
        for resource in ("schema:s2", "topic:*", "group:*", "x*"):
            admin.grant("as-neighbour", "developer", resource)
    routes = SchemaRequests(None, None, None).routes()  # type: ignore[arg-type]
    found, expected = {}, {}
    for route in routes:
        path = route.path.format(schema_id=1, guid="x", subject="s", version=1)
        for user, key in keys.items():
            status, _ = send(url + path, route.method, {}, {"Authorization": f"Bearer {key}"})
            found[route.method, path, user] = status == 403
            if "{" not in route.path:
                expected[route.method, path, user] = route.name not in FOR_ALL
            else:
                needed = RIGHTS.get(route.name, Operation.DESCRIBE)
                expected[route.method, path, user] = user not in ROLES or not ROLES[user] & needed
    assert found == expected
