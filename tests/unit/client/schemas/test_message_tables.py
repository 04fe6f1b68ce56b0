"""Columns of Protobuf messages, and messages as rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse
from headrace.client.schemas.message_tables import columns_of_message, row_of_message
from headrace.wire.errors import InvalidConfigError
from headrace.wire.typed.arrow_columns import arrays_of_rows, check_row

FILE = """
name: "shop.proto" package: "shop" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto"
dependency: "google/protobuf/duration.proto"
dependency: "google/protobuf/wrappers.proto"
enum_type { name: "Kind" value { name: "UNKNOWN" number: 0 } value { name: "TEA" number: 1 } }
message_type {
  name: "Order"
  field { name: "item" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "count" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 }
  field { name: "price" number: 3 label: LABEL_OPTIONAL type: TYPE_DOUBLE proto3_optional: true oneof_index: 0 }
  field { name: "kind" number: 4 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".shop.Kind" }
  field { name: "at" number: 5 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
  field { name: "took" number: 6 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" }
  field { name: "user" number: 7 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" }
  field { name: "photo" number: 8 label: LABEL_OPTIONAL type: TYPE_BYTES }
  field { name: "tags" number: 9 label: LABEL_REPEATED type: TYPE_STRING }
  field { name: "kinds" number: 10 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.KindsEntry" }
  field { name: "parts" number: 11 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Part" }
  field { name: "paid" number: 12 label: LABEL_OPTIONAL type: TYPE_BOOL }
  nested_type {
    name: "KindsEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".shop.Kind" }
  }
  oneof_decl { name: "_price" }
}
message_type {
  name: "Part"
  field { name: "n" number: 1 label: LABEL_OPTIONAL type: TYPE_SINT64 }
  field { name: "of" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Leaf" }
}
message_type { name: "Leaf" field { name: "x" number: 1 label: LABEL_OPTIONAL type: TYPE_FLOAT } }
message_type { name: "Empty" }
message_type {
  name: "Tree"
  field { name: "left" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Tree" }
}
message_type {
  name: "Holder"
  field { name: "none" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Empty" }
}
message_type { name: "Hidden" field { name: "_x" number: 1 label: LABEL_OPTIONAL type: TYPE_BOOL } }
"""


@pytest.fixture(scope="module")
def shop() -> Any:
    pool = DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(Parse(FILE, FileDescriptorProto()).SerializeToString())
    return lambda name: pool.FindMessageTypeByName(f"shop.{name}")


def test_columns(shop: Any) -> None:
    """A field that tells whether it is set may be null; another one has Protobuf's default."""
    assert str(columns_of_message(shop("Order"))) == (
        'item string required default "", count uint32 required default 0, price double, '
        'kind string required default "UNKNOWN", at timestamp[us, UTC], took duration[us], user int64, photo binary, '
        "tags list<string>, kinds map<int32, string>, parts list<struct<n: int64, of: struct<x: float>>>, "
        "paid bool required default false"
    )


def test_rows(shop: Any) -> None:
    """A message is a row of its columns, also one without any field that is set."""
    kind = GetMessageClass(shop("Order"))
    noon = dt.datetime(2026, 1, 1, 12, 0, 0, 250, dt.UTC)
    message = kind(item="tea", count=2, price=1.5, kind=1, photo=b"\xff", tags=["a"], paid=True, kinds={7: 1, 8: 9})
    message.at.FromDatetime(noon)
    message.took.FromTimedelta(dt.timedelta(seconds=1.5))
    message.user.value = -3
    message.parts.add(n=4).of.x = 0.5
    message.parts.add()
    row = row_of_message(kind.FromString(message.SerializeToString()))
    assert row == {
        "item": "tea", "count": 2, "price": 1.5, "kind": "TEA", "at": noon, "took": dt.timedelta(seconds=1.5),
        "user": -3, "photo": b"\xff", "tags": ["a"], "kinds": {7: "TEA", 8: "9"},
        "parts": [{"n": 4, "of": {"x": 0.5}}, {"n": 0, "of": None}], "paid": True,
    }  # fmt: skip
    empty = row_of_message(kind())
    assert (empty["price"], empty["at"], empty["user"], empty["item"], empty["kind"]) == (
        None,
        None,
        None,
        "",
        "UNKNOWN",
    )
    columns = columns_of_message(shop("Order"))
    for each in (row, empty):
        check_row(each, columns)
    assert [len(array) for array in arrays_of_rows([row, empty], columns)] == [2] * 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Empty", "the message shop.Empty has no fields"),
        ("Tree", "the field left has a shop.Tree in itself"),
        ("Holder", "the field none is a shop.Empty without fields"),
        ("Hidden", "the name '_x' begins with an underscore"),
    ],
)
def test_what_is_no_column(shop: Any, name: str, message: str) -> None:
    """The message has the field and the reason."""
    with pytest.raises(InvalidConfigError, match=message):
        columns_of_message(shop(name))
