"""Conversion between headrace's types and etcd's messages. Pure; used only by `etcd`."""

from __future__ import annotations

from typing import Any

from headrace_server.metastore import etcd3_stubs as stubs
from headrace_server.metastore.api import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Exists,
    Get,
    KeyValue,
    ModRevisionIs,
    Operation,
    Put,
    PutEvent,
    VersionIs,
    WatchEvent,
    WatchEvents,
)


def prefix_end(prefix: str) -> bytes:
    """Return the first key after all keys that start with `prefix`, whose last byte is below 0xff."""
    encoded = prefix.encode()
    return encoded[:-1] + bytes([encoded[-1] + 1])


def compare_message(compare: Compare) -> Any:
    """Return etcd's message for a compare."""
    message = stubs.rpc_pb2.Compare
    key = compare.key.encode()
    match compare:
        case ModRevisionIs(revision=revision):
            return message(key=key, result=message.EQUAL, target=message.MOD, mod_revision=revision)
        case CreateRevisionIs(revision=revision):
            return message(key=key, result=message.EQUAL, target=message.CREATE, create_revision=revision)
        case VersionIs(version=version):
            return message(key=key, result=message.EQUAL, target=message.VERSION, version=version)
        case Exists():
            return message(key=key, result=message.GREATER, target=message.VERSION, version=0)


def operation_message(operation: Operation) -> Any:
    """Return etcd's message for an operation of a transaction."""
    rpc = stubs.rpc_pb2
    match operation:
        case Put(key, value, lease_id):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease_id))
        case Delete(key):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode(), prev_kv=True))
        case DeletePrefix(prefix):
            deletion = rpc.DeleteRangeRequest(key=prefix.encode(), range_end=prefix_end(prefix), prev_kv=True)
            return rpc.RequestOp(request_delete_range=deletion)
        case Get(key):
            return rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode()))


def found_by(response: Any) -> tuple[KeyValue, ...]:
    """Return the keys that an operation of a transaction read or deleted."""
    match response.WhichOneof("response"):
        case "response_range":
            return tuple(key_value(kv) for kv in response.response_range.kvs)
        case "response_delete_range":
            return tuple(key_value(kv) for kv in response.response_delete_range.prev_kvs)
    return ()


def key_value(kv: Any) -> KeyValue:
    """Convert etcd's key-value message."""
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def by_revision(answer: Any) -> list[WatchEvents]:
    """Group the events of a watch response by revision. Without fragments etcd never splits a revision."""
    cluster_id = answer.header.cluster_id
    groups: dict[int, list[WatchEvent]] = {}
    for event in answer.events:
        revision = event.kv.mod_revision
        item: WatchEvent
        if event.type == stubs.kv_pb2.Event.PUT:
            item = PutEvent(key_value(event.kv))
        else:
            item = DeleteEvent(event.kv.key.decode(), revision)
        groups.setdefault(revision, []).append(item)
    if not groups:
        return [WatchEvents(answer.header.revision, (), cluster_id)]
    return [WatchEvents(revision, tuple(groups[revision]), cluster_id) for revision in sorted(groups)]
