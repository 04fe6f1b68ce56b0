"""Generator of docs/reference/rpcs.md and of the values in docs/reference/etcd-keys.md, from the protos."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.v1 import (
    broker_pb2,
    cluster_pb2,
    errors_pb2,
    groups_pb2,
    handshake_pb2,
    process_pb2,
    tables_pb2,
    topics_pb2,
)
from headrace_server.internal_v1 import metadata_pb2

from reference_pages.markdown import table
from reference_pages.protos import Declaration, ProtoFile, check_complete, read_proto

PROTO = Path(__file__).resolve().parent.parent.parent / "proto" / "headrace"

_INTRO = """# RPCs

gRPC services in the package `headrace.v1`. `BrokerService` and `TableService` run on brokers, `ClusterService` on
coordinators; `GetMetadata` is on both, so that a client may have the address of either. Every server also has the
standard gRPC health and reflection services.

Rules that hold for every call:

- A call requires a deadline. Without one it is rejected with `DEADLINE_REQUIRED`.
- A call that fails as a whole has a `headrace.v1.Status` in the trailer `grpc-status-details-bin`, with an
  `ErrorDetail` inside. An answer about several topics or partitions has an `ErrorDetail` for each that failed, and
  the call itself succeeds. [errors.md](errors.md) lists the codes.
- A request identifies a topic by its name or by its id (`TopicRef`). Clients with state send the id: a topic that was
  deleted and created again under the same name has another id, and the call returns `UNKNOWN_TOPIC_ID`.
- Fields whose names end in `_ms` are milliseconds; timestamps count from 1970 in UTC.
"""

# Default descriptions of fields without a comment in their proto.
_COMMON = {
    "client_id": "Name of the caller, for logs and errors.",
    "name": "The topic's name.",
    "topic_id": "The topic's id, 16 bytes.",
    "partition": "The partition's number, from 0.",
    "leader_epoch": "Rises with every change of the partition's leader.",
    "error": "Absent on success.",
    "log_start_offset": "The first offset that can be read.",
    "high_watermark": "Records below it are visible to consumers.",
    "log_end_offset": "The offset of the next record.",
    "broker_id": "The broker's number.",
    "broker_epoch": "The broker's session: the revision of its registration in etcd.",
    "version": "The release that the process runs.",
    "validate_only": "Check the request without any change.",
    "cluster_id": "Drawn once, when the cluster is created.",
    "generation": "Rises when etcd is restored from a backup.",
    "format_version": "Version of the keys and values in etcd.",
    "throttle_ms": "Time to wait before the next call, in milliseconds; 0 means none.",
    "replicas": "Brokers that hold a copy; the first is the preferred leader.",
    "in_sync_replicas": "Brokers whose copy is complete up to the high watermark.",
    "in_sync": "Replicas that count for the high watermark.",
    "eligible_leaders": "Not in sync, but known to have all committed records.",
    "data_center": "The failure domain above the rack.",
    "rack": "The failure domain over which replicas are spread.",
    "host": "The machine, a failure domain below the rack.",
    "producer_id": "Id of an idempotent producer.",
    "producer_epoch": "Rises when the producer restarts its sequences.",
    "draining": "The broker must give up its leaderships.",
    "coordinator_id": "The coordinator's name, unique in the cluster.",
    "max_batch_bytes": "Maximum size of a batch, in bytes, header included.",
    "create_revision": "etcd's revision at which the key was created.",
    "mod_revision": "etcd's revision of its last write.",
    "revision": "etcd's revision of this view.",
    "address": "host:port.",
}


def rpcs_body() -> str:
    """Return the page from its title."""
    files = [
        _read(PROTO / "v1" / "broker.proto", broker_pb2),
        _read(PROTO / "v1" / "tables.proto", tables_pb2),
        _read(PROTO / "v1" / "cluster.proto", cluster_pb2),
        _read(PROTO / "v1" / "groups.proto", groups_pb2),
        _read(PROTO / "v1" / "process.proto", process_pb2),
        _read(PROTO / "v1" / "topics.proto", topics_pb2),
        _read(PROTO / "v1" / "handshake.proto", handshake_pb2),
        _read(PROTO / "v1" / "errors.proto", errors_pb2),
    ]
    known = {declaration.name for file in files for declaration in file.declarations}
    sections = [_INTRO.strip()]
    for file in files:
        sections.append(f"## {file.path.name}")
        sections += [_section(declaration, known) for declaration in file.declarations]
    return "\n\n".join(sections)


def values_body() -> str:
    """Return the messages that are values in etcd, as second-level sections."""
    file = _read(PROTO / "internal" / "v1" / "metadata.proto", metadata_pb2)
    known = {declaration.name for declaration in file.declarations}
    return "\n\n".join(["## Values", *(_section(declaration, known) for declaration in file.declarations)])


def _read(path: Path, module: object) -> ProtoFile:
    file = read_proto(path)
    check_complete(file, module.DESCRIPTOR)  # type: ignore[attr-defined]
    return file


def _section(declaration: Declaration, known: set[str]) -> str:
    kind = declaration.kind
    parts = [f"### {declaration.name}"]
    parts.append(f"{kind.capitalize()}. {_text(declaration.comment)}".strip())
    if kind == "service":
        rows = [
            (f"`{entry.name}`", _types(entry.type, known), _text(entry.comment) or "-") for entry in declaration.entries
        ]
        parts.append(table(("method", "request -> response", "what it does"), rows))
    elif kind == "enum":
        rows = [(f"`{entry.name}`", str(entry.number), _text(entry.comment)) for entry in declaration.entries]
        parts.append(table(("value", "number", "meaning"), rows))
    elif declaration.entries:
        fields = [
            (
                f"`{entry.name}`",
                str(entry.number),
                _types(entry.type, known) + (f", one of `{entry.oneof}`" if entry.oneof else ""),
                _text(entry.comment) or _COMMON.get(entry.name, ""),
            )
            for entry in declaration.entries
        ]
        parts.append(table(("field", "number", "type", "meaning"), fields))
    return "\n\n".join(parts)


def _types(text: str, known: set[str]) -> str:
    """Return a type with links to the messages and enums of this page."""
    linked = re.sub(r"\w+", lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in known else word[0], text)
    return linked.replace("<", "&lt;").replace("->", "→")


def _text(comment: str) -> str:
    """Return a comment in which plain names of pages in docs/reference are links."""
    return re.sub(r"docs/reference/([\w-]+\.md)", r"[\1](\1)", comment)
