"""Schemas of keys and values: Avro, JSON Schema and Protobuf with a schema registry.

registry = schemas.SchemaRegistry("http://localhost:8081")
producer = headrace.Producer(value_serializer=schemas.Avro(registry, subject="orders-value"))
consumer = headrace.Consumer("orders", value_deserializer=schemas.Avro(registry))
"""

from headrace.client.schemas.codecs import Avro, JsonSchema, Protobuf, SchemaCodec
from headrace.client.schemas.registry import (
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
)

__all__ = [
    "Avro",
    "JsonSchema",
    "Protobuf",
    "RegisteredSchema",
    "SchemaCodec",
    "SchemaReference",
    "SchemaRegistry",
    "SchemaRegistryError",
]
