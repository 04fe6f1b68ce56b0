"""Generator of docs/reference/native-protocol.md, from the modules that write the frames and enforce the limits."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from enum import IntEnum

from headrace.client.net import native_ports
from headrace.v1 import broker_pb2, topics_pb2
from headrace.wire import frames
from headrace.wire.encoding import encode_batch
from headrace.wire.frames import (
    CLIENT_KINDS,
    FOLLOWER_KINDS,
    HEADER,
    LEADER_KINDS,
    SERVER_KINDS,
    Header,
    Kind,
    MethodCode,
    frame_head,
)
from headrace_broker.runtime.replica_messages import MAX_REQUEST_BYTES, SILENCE_SECONDS
from headrace_server.methods import METHODS
from headrace_server.native import connection, framed_connection, server
from headrace_server.native.outgoing import COPIED_BYTES
from headrace_server.requests import LARGE_BYTES, REFUSED_BYTES

from reference_pages.markdown import docstring, table

_KINDS: dict[IntEnum, tuple[str, str]] = {
    Kind.HELLO: ("`Hello`", "The first frame of the client."),
    Kind.WELCOME: ("`Welcome`", "The first frame of the server."),
    Kind.REQUEST: ("the method's request", "Attachments: the batches of a Produce."),
    Kind.ANSWER: ("the method's answer", "Attachments: the batches of a Fetch."),
    Kind.ERROR: (
        "`ErrorDetail`",
        "Replaces an answer. With correlation 0 it concerns the connection, and is the last frame.",
    ),
    Kind.CANCEL: ("-", "The client no longer needs an answer."),
    Kind.CONFIRM: ("-", "The preceding answer or message is valid."),
    Kind.DISCARD: ("-", "The preceding answer or message is invalid: the log changed while it was sent."),
    Kind.GOODBYE: ("-", "The server accepts no more requests on this connection."),
    Kind.MESSAGE: ("of the stream", "One message of a stream. Attachments: the batches of a leader."),
    Kind.SESSION: ("the token, UTF-8", "The session of all later requests. It has no answer."),
}
_METHODS: dict[IntEnum, tuple[str, str, str]] = {
    MethodCode.PRODUCE: ("Produce", "each batch of the request, sizes in `batch_sizes`", "none"),
    MethodCode.FETCH: ("Fetch", "none", "the batches of each partition, their size in `batches_size`"),
    MethodCode.LIST_OFFSETS: ("ListOffsets", "none", "none"),
    MethodCode.GET_ROWS: ("GetRows", "none", "none"),
    MethodCode.WRITE_ROW: ("WriteRow", "none", "none"),
    MethodCode.REPLICA_FETCH: ("ReplicaFetch", "none", "the batches of each partition, their size in `batches_size`"),
}

_SERVED = SERVER_KINDS | LEADER_KINDS
_SENDERS = {(True, False): "client", (False, True): "server", (True, True): "both"}

_INTRO = """# The native protocol

A broker serves records (`Produce`, `Fetch`, `ListOffsets`) and rows of tables (`GetRows`, `WriteRow`) over gRPC, for
every language, and as frames on a socket, which cost both sides a fraction of the processor time. The messages are the
same ([RPCs](rpcs.md)), except that batches are attached to them. The SDK uses the native protocol by default
(`transport="auto"`), and gRPC for all other calls and if the port cannot be reached.
[Decision 46](../decisions/0046-use-own-frames-for-records.md) has the reasons."""

_CONNECTION = """## A connection

`GetMetadata` returns the address of each broker (`native_address`; an empty one means that the broker serves only
gRPC). A client opens one connection to a broker, with TLS if the client listener uses TLS, and sends the eight bytes
`{preface}` and a HELLO. The broker answers with a WELCOME, or with an ERROR and closes the connection. Requests before
the WELCOME are allowed, but a client that can fall back to gRPC waits for it: only a WELCOME shows that the server at
that address is a broker.

After that, both sides send frames. A client sends up to `max_requests` (of the WELCOME) requests without waiting. The
broker answers each when it is ready, in any order. A long poll thus delays no other request, and one connection is
enough. Batches of one partition are appended in the order of their requests on the connection. Producers and
consumers have separate connections."""

_HANDSHAKE = """## The handshake

`Hello` has the `client_id` and a `Handshake`: release and capabilities. `Welcome` has the name of the broker
(`answered_by`), its `Handshake` and `max_requests`. Each side rejects the other if their releases are more than one
minor release apart, or if the other lacks a required capability. The broker then sends an ERROR `UNSUPPORTED_VERSION`;
the client closes the connection. A third-party client leaves the `Handshake` empty and is accepted.

## Sessions

With TLS the identity of a client is that of its certificate, as over gRPC. Other clients exchange an API key or a JSON
Web Token for a session token, by [`OpenSession`](rpcs.md) over gRPC, and send the token in `session` of `Hello`. When
they have renewed it, they send the new token in a SESSION frame before their next request: it replaces the one before
for all requests behind it. The end of a session does not close the connection.

- Without a valid session, the broker answers a Hello with an ERROR `UNAUTHENTICATED` of correlation 0, or each request
  with an ERROR `UNAUTHENTICATED` of its own. Such a request had no effect: the client opens a new session and sends the
  request again, once, on the same connection or on a new one.
- If the token of a SESSION frame is not valid, the broker ends the connection with an ERROR `UNAUTHENTICATED` of
  correlation 0. The outcome of its requests without an answer is unknown.
- If it cannot check that token yet, without etcd or because the user has too many connections, it rejects each later
  request with `METASTORE_UNAVAILABLE` or `THROTTLED`, and checks it again at the next one."""

_PRODUCE = """## Produce

1. The client creates a `ProduceRequest` without `batches`. For each partition it lists the size of each batch in
   `batch_sizes`, and appends the batches to the frame in the order of the message: topics, partitions, batches.
2. The client uses the next correlation, sends header, request id, message and batches, and does not wait.
3. The broker reads the header. If it rejects the request, it skips the body and answers with an ERROR. Otherwise it
   receives the body once, into the memory from which it writes it.
4. The broker parses the message, checks that sizes and attachments agree, and appends as gRPC's `Produce` does.
5. After the requested acknowledgement the broker sends an ANSWER with the `ProduceResponse`, or an ERROR.
6. A lost connection leaves the outcome unknown. An idempotent producer sends the same batches again.

The request id of a call in a sampled trace begins with the context of W3C Trace Context and a hyphen, as in
`00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-2f`; gRPC's metadata has it as `traceparent`. See
[Trace records](../guides/tracing.md).

The batch of [the format's example](batch-format.md#example), produced to partition 0 of `ticks`:"""

_FETCH = """## Fetch

1. The client sends a REQUEST with a `FetchRequest`. The broker rejects `as_records`: the answer has stored batches.
2. The broker checks and waits for `min_bytes` as gRPC's `Fetch` does. It locates ranges of files and reads nothing.
3. It sends header and `FetchResponse`, in which `batches_size` of each partition is its number of bytes, and then the
   ranges. Without TLS the kernel sends them from the page cache (`sendfile`), after a thread has loaded missing pages.
   With TLS the broker reads and writes the ranges.
4. Such an answer has the flag `CONFIRMED`. The log may have been truncated into a range while it was sent, so that the
   bytes belong to another leader epoch and have valid checksums, or the broker's lease may have ended. A CONFIRM or a
   DISCARD therefore follows directly. After a DISCARD the client drops the answer and fetches again.
5. An answer of at most {copied} that is in the page cache is read at once and has no flag: it is valid as it is.
6. The client splits the attachments by `batches_size`, and checks each batch's checksum, chain and offsets.
7. With `next_offset` and `last_epoch` a client can send its next request when the message has arrived, before the
   batches have. It must drop that response if the first one is discarded or fails."""

_RULES = """## Cancellation and deadlines

- `timeout` counts from when the whole request has arrived. The broker checks once a second, cancels overdue requests
  and answers with `TIMED_OUT`. A client also measures the time: it sends a CANCEL and drops a late answer.
- After a CANCEL the broker sends no frame for the request, unless its answer was already being sent. It ignores a
  CANCEL of an unknown request. A cancelled Produce may have been appended.
- A correlation that is not answered yet must not be used again. Clients count up from 1.

## End of a connection

- GOODBYE: the broker stops, the connection was idle for {idle}, or its place was given to another client. The client
  sends further requests on a new connection. A stopping broker still answers earlier requests and rejects later ones
  with `SHUTTING_DOWN`; on an idle connection it does so for a second. The outcome of a request without an answer is
  unknown.
- An ERROR with correlation 0: the other side violated the protocol, or is rejected. It is the last frame: the frame in
  progress is sent before it, and later answers are dropped.
- Without a frame: the network failed, a limit below applies, or there was no place for the connection.

## Errors

An ERROR has the `ErrorDetail` of a gRPC status: [code, retriable, outcome, action](errors.md). Errors of single
partitions are in the answer. If the broker rejects a request by its header, before any processing, the outcome is
`NOT_APPLIED`."""

_TLS = """## TLS

The port uses TLS if and only if the client listener does: TLS 1.2 or later, the same certificate and authority, and
the same requirement for client certificates. There is no ALPN, and no upgrade from plain text within a connection.
Clients check the certificate against the host of `native_address`, or against `ssl_server_name`. Renewed files apply
to new connections."""

_STREAMS = """## Streams of followers

Brokers copy partitions from each other over a separate port (`replication_listen`), in the same frames. Its
connections have no requests: each is one stream of messages in both directions. After HELLO and WELCOME:

1. The leader sends a MESSAGE with a challenge.
2. The follower answers with a MESSAGE that contains its identity and the proof of it. Until then a message has at
   most {first}.
3. Both sides send MESSAGE frames at any time, each with correlations 1, 2, 3 and so on. No answer refers to a
   correlation; [replication](../protocols/replication.md#a-fetch) describes the messages. A side closes the stream if
   nothing arrives for {challenge}, or if a message that it waits for is not complete after {frame}.
4. A leader's message whose batches are ranges of files has the flag `CONFIRMED`, and a CONFIRM or DISCARD follows.

An ERROR ends the stream. With internal TLS both sides present certificates, on this port as on `internal_listen`."""

_FALLBACK = """## When clients use gRPC

| event | reaction of the SDK with `transport="auto"` |
| --- | --- |
| metadata has no native address | it uses gRPC for every call |
| no connection within {connect}, or no WELCOME | it uses gRPC for the next {avoid}, and logs one warning |
| the connection is lost later | its requests fail as with gRPC, and are retried on a new connection |

With `native` the second row is an error; with `grpc` the SDK uses only gRPC."""

_CLIENT = """## A client in another language

`pack`, `parse` and the messages depend on the language. Numbers are little-endian.

```python
def connect(address):
    host, port = split(address)                       # native_address of GetMetadata
    connection = tls_if_needed(tcp(host, port))
    hello = Hello(client_id="mine", session=token)    # of OpenSession; empty without an identity
    connection.send(b"HEADRACE" + frame(HELLO, message=hello))
    kind, _, _, message, _ = receive(connection)
    if kind != WELCOME:
        raise Refused(parse(ErrorDetail, message))
    start_thread(read_answers, connection)
    return connection

def frame(kind, method=0, correlation=0, timeout_ms=0, request_id=b"", message=b"", batches=()):
    size = len(request_id) + len(message) + sum(map(len, batches))
    header = pack("<IBBHQIIHH", size, kind, method, 0, correlation, len(message), timeout_ms, len(request_id), 0)
    return header + request_id + message + concatenated(batches)

def receive(connection):
    header = connection.read_exactly(28)
    size, kind, method, flags, correlation, message_size, _, _, _ = unpack("<IBBHQIIHH", header)
    if size > 64 MiB:
        raise Broken
    body = connection.read_exactly(size)              # of the server: no request id
    return kind, flags, correlation, body[:message_size], body[message_size:]

def call(connection, method, message, batches=(), timeout_ms=30_000):
    if connection.is_ending or connection.unanswered == max_requests:
        use another connection, or wait
    correlation = connection.next_correlation()       # 1, 2, 3 and so on
    connection.waiting[correlation] = future = Future()
    connection.send(frame(REQUEST, method, correlation, timeout_ms, new_id(), message, batches))
    try:
        return future.wait(timeout_ms)                # message and attachments
    except Late:
        del connection.waiting[correlation]
        connection.send(frame(CANCEL, correlation=correlation))
        raise

def read_answers(connection):
    while (found := receive(connection)):             # its end: every waiting future fails, outcome unknown
        kind, flags, correlation, message, attached = found
        if kind == GOODBYE:
            connection.is_ending = True
        elif kind == ERROR and correlation == 0:
            connection.fail(parse(ErrorDetail, message))
        elif kind == ERROR:
            connection.waiting.pop(correlation).fail(parse(ErrorDetail, message))
        elif kind == ANSWER and flags & 1:            # CONFIRMED
            verdict, _, _, _, _ = receive(connection)
            if verdict == CONFIRM:
                connection.waiting.pop(correlation).resolve(message, attached)
            else:
                connection.waiting.pop(correlation).fail(TryAgain)
        elif kind == ANSWER:
            connection.waiting.pop(correlation).resolve(message, attached)
```

Ignore an unknown correlation. After GOODBYE, open another connection when the last answer has arrived."""


def native_body() -> str:
    """Return the page from its title."""
    _check_layout()
    return "\n\n".join(
        [
            _INTRO,
            _CONNECTION.format(preface=frames.PREFACE.decode()),
            "## Frames",
            docstring(frames).removesuffix("See docs/reference/native-protocol.md.").partition("\n\n")[2].strip(),
            "### Kinds",
            _kinds(),
            "### Methods",
            _methods(),
            "### Flags",
            table(
                ("bit", "name", "when set"),
                [
                    (
                        f"{frames.CONFIRMED:#06x}",
                        "`CONFIRMED`",
                        "in an ANSWER or MESSAGE: a CONFIRM or DISCARD follows directly",
                    )
                ],
            ),
            _HANDSHAKE,
            _PRODUCE,
            _example(),
            _FETCH.format(copied=_bytes(COPIED_BYTES)),
            _RULES.format(idle=_seconds(server.IDLE_SECONDS)),
            "## Limits",
            _limits(),
            _TLS,
            _STREAMS.format(
                challenge=_seconds(SILENCE_SECONDS),
                frame=_seconds(framed_connection.FRAME_SECONDS),
                first=_bytes(frames.MAX_HELLO_BYTES),
            ),
            _FALLBACK.format(connect=_seconds(native_ports.CONNECT_S), avoid=_seconds(native_ports.AVOID_S)),
            _CLIENT,
        ]
    )


def _check_layout() -> None:
    """Assert that the table in the docstring matches the struct."""
    stated = re.findall(r"^    (\d+) +(\d+) +(\S.*?)(?::|, see|$)", str(frames.__doc__), re.MULTILINE)
    sizes = [struct.calcsize("<" + code) for code in HEADER.format.lstrip("<")]
    positions = [sum(sizes[:index]) for index in range(len(sizes))]
    fields = ["size", "kind", "method", "flags", "correlation", "message size", "timeout", "request id size", "0"]
    assert len(fields) == len(Header._fields) == len(sizes)
    found = [(int(position), int(size), name.partition(",")[0]) for position, size, name in stated]
    assert [(position, size) for position, size, _ in found] == list(zip(positions, sizes, strict=True)), found
    assert [name for _, _, name in found] == fields, found


def _kinds() -> str:
    assert set(_KINDS) == set(Kind)
    rows = [
        (kind.value, f"`{kind.name}`", _SENDERS[kind in CLIENT_KINDS | FOLLOWER_KINDS, kind in _SERVED], *_KINDS[kind])
        for kind in Kind
    ]
    return table(("number", "name", "sent by the", "message", "what"), rows)


def _methods() -> str:
    assert set(_METHODS) == set(MethodCode)
    by_name = {path.rpartition("/")[2]: row for path, row in METHODS.items()}
    rows = []
    for method in MethodCode:
        name, attached, answered = _METHODS[method]
        row = by_name.get(name)
        largest = MAX_REQUEST_BYTES if row is None else row.max_bytes
        messages = f"`{name}Request`, `{name}Response`"
        rows.append((method.value, f"`{method.name}`", messages, attached, answered, _bytes(largest)))
    head = ("number", "name", "messages", "attached to the request", "attached to the answer", "largest request")
    return table(head, rows)


def _limits() -> str:
    broken = "ERROR `INVALID_REQUEST` with correlation 0, and the connection is closed"
    ended = "the connection is closed"
    throttled = "ERROR `THROTTLED` with `retry_after_ms`"
    rows: Sequence[tuple[str, str, str]] = (
        ("a frame, without its header", _bytes(frames.MAX_FRAME_BYTES), broken),
        ("a HELLO", _bytes(frames.MAX_HELLO_BYTES), broken),
        ("a request id", _bytes(frames.MAX_REQUEST_ID_BYTES), broken),
        ("a request of a method", "see Methods", "ERROR `INVALID_REQUEST`; the body is skipped"),
        ("elements of a request's repeated fields", "as over gRPC", "ERROR `INVALID_REQUEST`"),
        ("`timeout` 0", "-", "ERROR `DEADLINE_REQUIRED`; the body is skipped"),
        (
            "unanswered requests of a connection",
            str(connection.MAX_REQUESTS),
            "further ones wait until one is answered; the broker notices a CANCEL in the next 32 KiB, and the end of "
            "the connection; unread refusals count, too",
        ),
        (
            "requests per address, and in total",
            "`max_calls_per_peer`, `max_concurrent_calls`, with those over gRPC",
            throttled,
        ),
        (
            f"requests above {_bytes(frames.STAGE_BYTES)} in transit",
            f"{_bytes(server.MAX_ARRIVING_BYTES)} in total; of `n` addresses each has one part in `n + 1`",
            f"{throttled}; the body is skipped",
        ),
        ("bytes of Produce in progress", "`max_inflight_bytes`, with those over gRPC", "ERROR `THROTTLED`"),
        (
            f"messages above {_bytes(LARGE_BYTES)} of one address that are rejected as invalid",
            f"{_bytes(REFUSED_BYTES)}/s",
            "further large ones are not parsed: `THROTTLED`, after half a second",
        ),
        ("from the connection to the HELLO", _seconds(framed_connection.HELLO_SECONDS), ended),
        ("a TLS handshake", _seconds(server.HANDSHAKE_SECONDS), ended),
        (
            "TLS handshakes at once",
            str(server.MAX_HANDSHAKES),
            f"further connections wait, and a handshake ends after {_seconds(server.HURRIED_SECONDS)}",
        ),
        ("from the first byte of a frame to its last", _seconds(framed_connection.FRAME_SECONDS), ended),
        ("a client that reads nothing of an answer", _seconds(framed_connection.STALL_SECONDS), ended),
        ("a connection without a request", _seconds(server.IDLE_SECONDS), "GOODBYE, and the connection is closed"),
        (
            "connections",
            "`max_native_connections`, at most an eighth of the open files; of `n` addresses each has one part in "
            "`n + 1`",
            "the connection that was idle for longest, and has read its answers, is closed; if there is none, the new "
            "one",
        ),
    )
    return table(("what", "limit", "beyond it"), rows)


def _example() -> str:
    batch = encode_batch([b"tick", b"tock!"], base_timestamp_ms=1_300_000_000_000)
    request = broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_ALL, timeout_ms=5_000)
    topic = request.topics.add(topic=topics_pb2.TopicRef(name="ticks"))
    topic.partitions.add(partition=0, batch_sizes=[len(batch)])
    message = request.SerializeToString()
    frame = frame_head(
        Kind.REQUEST, message, method=MethodCode.PRODUCE, correlation=7, attached=len(batch), timeout_ms=6_000,
        request_id=b"a1b2",
    )  # fmt: skip
    header = Header._make(HEADER.unpack_from(frame))
    lines, position = ["```text", "offset bytes                     field"], 0
    for name, code in zip(Header._fields, HEADER.format.lstrip("<"), strict=True):
        size = struct.calcsize("<" + code)
        lines.append(_line(frame, position, size, f"{name} = {getattr(header, name)}"))
        position += size
    what = f"ProduceRequest: acks all, timeout_ms 5000, ticks, partition 0, batch_sizes [{len(batch)}]"
    for part, text in ((b"a1b2", "request id"), (message, what)):
        for start in range(0, len(part), 8):
            lines.append(_line(frame, position + start, min(8, len(part) - start), text if start == 0 else ""))
        position += len(part)
    assert position == len(frame)
    assert header.size == len(frame) - HEADER.size + len(batch)
    lines.append(f"{position:4}   {'...':<25} the batch, {len(batch)} bytes")
    return "\n".join([*(line.rstrip() for line in lines), "```"])


def _line(data: bytes, position: int, size: int, what: str) -> str:
    return f"{position:4}   {data[position : position + size].hex(' '):<25} {what}"


def _bytes(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} bytes"


def _seconds(count: float) -> str:
    return "a second" if count == 1 else f"{count:g} s"
