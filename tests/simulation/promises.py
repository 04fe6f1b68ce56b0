"""What servers answer to clients, and what that promises them afterwards.

A promise holds from the moment in which a client has the answer: a later request, to a leader of the same epoch
or a later one, is answered no lower. A deposed leader may answer lower (H28), and a leader that has just started may
name a lower high watermark in a Fetch, with an empty answer (H10); ListOffsets refuses until it knows. What an unclean
election gave up is not promised any more (H21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from headrace.client.net.native_calls import NativeRequest
from headrace.log.directory import LogId
from headrace.v1 import broker_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.batch import BatchHeader, check_batch, iter_batches
from headrace.wire.columns import decode_batch
from headrace.wire.compression import Codec
from headrace.wire.decoded import Columns, Headers
from headrace.wire.errors import CorruptBatchError, ErrorCode, from_detail, from_rpc_error
from headrace.wire.frames import MethodCode
from headrace.wire.zero_copy import SplicedMessage, parse_fetch_response, parse_produce_request

from tests.simulation.exercise import CHECKED, COMPRESSED, NATIVE
from tests.simulation.typed_rows import name_in, names_in
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from headrace.client.net.cluster_metadata import ClusterMetadata

    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster

SERVICE = "/headrace.v1.BrokerService/"
PAYLOAD_BYTES = 1 << 20
NAME_HEADER = "name"
BatchName = tuple[int, int, int, int]


def address_of(broker_id: int) -> str:
    """Where a broker listens for clients."""
    return f"b{broker_id}:7181"


def name_of(value: bytes | Mapping[str, Any] | None, headers: Headers = ()) -> str:
    """The record's name, which its value begins with, or which its row has; a deletion has it in a header."""
    if isinstance(value, Mapping):
        return name_in(value)
    text = dict(headers).get(NAME_HEADER, b"") if value is None else value
    return text.partition(b" ")[0].decode()


def names_of(columns: Columns) -> list[str]:
    """The names of the records in a batch."""
    if columns.typed is not None:
        return names_in(columns)
    return list(map(name_of, columns.values(), columns.headers()))


@dataclass(slots=True)
class Promises:
    """What servers answered of one partition, the highest of each leader epoch."""

    acknowledged: dict[int, int] = field(default_factory=dict)
    """Where records end that are acknowledged by all."""
    seen: dict[int, int] = field(default_factory=dict)
    """High watermarks, from whomever."""
    watermark: dict[int, int] = field(default_factory=dict)
    """High watermarks that the epoch's leader has answered."""
    log_start: dict[int, int] = field(default_factory=dict)
    """Log starts that leaders have answered."""

    def as_of_now(self) -> Promises:
        """A copy, for a question that is asked now."""
        return Promises(dict(self.acknowledged), dict(self.seen), dict(self.watermark), dict(self.log_start))


def _raise_to(known: dict[int, int], epoch: int, value: int) -> None:
    known[epoch] = max(known.get(epoch, -1), value)


def _least(known: dict[int, int], epoch: int) -> int:
    """What a leader of `epoch` may not fall below."""
    return max((value for each, value in known.items() if each <= epoch), default=-1)


class PromiseChecks:
    """All promises that were made to clients in a run."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.by_partition: dict[LogId, Promises] = {}
        self.values: dict[BatchName, tuple[str, ...]] = {}
        """The records of each batch that a producer has sent."""
        self._lives: dict[str, LogId] = {}
        """Where each record was sent to."""
        self._contents: dict[tuple[LogId, int, int, int], int] = {}
        """The checksum of each sequence that was sent."""
        self._tables: dict[str, dict[tuple[bytes, int], int]] = {}
        self._newest_life: dict[str, int] = {}
        self._produced: dict[str, Produced] = {}
        """Produce requests of the native protocol without an answer, by their request ids."""
        self._served: dict[str, dict[Produced, None]] = {}
        """Those that a broker serves, by connection, in the order in which they arrived."""

    def asks(self, client: str, address: str, method: str, request: bytes) -> Exchange:
        """A client calls now, over gRPC."""
        kind = _EXCHANGES.get(method.removeprefix(SERVICE), Exchange)
        return kind(self, client, address, kind.parse_request(request))

    def asks_natively(self, client: str, address: str, request: NativeRequest) -> Exchange:
        """A client calls the broker at `address` now, over the native protocol."""
        world, message = self.cluster.world, request.message
        world.count(NATIVE)
        if request.method == MethodCode.PRODUCE:
            attached = memoryview(b"".join(request.attached))
            spliced = splice_produce(broker_pb2.ProduceRequest.FromString(message), attached)
            produced = self._produced[request.request_id] = Produced(self, client, address, spliced)
            world.note(client, produced.what)
            return produced
        kind = _NATIVE_EXCHANGES.get(request.method, Exchange)
        return kind(self, client, address, kind.parse_request(message))

    @contextmanager
    def served_natively(self, request_id: str, connection: str) -> Iterator[None]:
        """A broker serves a Produce of a connection."""
        served, produced = self._served.setdefault(connection, {}), self._produced[request_id]
        produced.ahead = {key: [other for other in served if key in other.parts] for key in produced.parts}
        served[produced] = None
        try:
            yield
        finally:
            del served[produced]
            produced.check_order()

    def answers_natively(self, request_id: str, message: bytes) -> None:
        """A broker answers a Produce now, over the native protocol."""
        produced = self._produced.pop(request_id)
        said = produced.answered(produced.parse_answer(message))
        self.cluster.world.note(produced.address, said)

    def of(self, key: LogId) -> Promises:
        """The promises of a partition."""
        return self.by_partition.setdefault(key, Promises())

    def holds(self, key: LogId) -> bool:
        """Whether anything is promised of the partition still."""
        partition = self.cluster.checks.partitions.get(key)
        return partition is not None and not partition.is_deleted and not partition.unclean

    def log_starts_forgotten(self, key: LogId) -> None:
        """An eligible leader may lack the last log start, as it may lack records (H14)."""
        self.of(key).log_start.clear()

    def broker_at(self, address: str) -> Broker | None:
        """The broker that listens there."""
        found = (node.broker for node in self.cluster.brokers.values() if address == address_of(node.broker_id))
        return next(found, None)

    def checked(self, name: str, has_compared: bool = True) -> None:
        """Count a comparison that could have broken a promise."""
        if has_compared:
            self.cluster.world.count(CHECKED + name)

    def breaks(self, name: str, message: str) -> None:
        """A promise is broken: the run ends with the event, whatever shipped code does meanwhile."""
        self.cluster.checks.break_promise(SimulationError(name, message))

    # --- producers ---

    def sends(self, client: str, key: LogId, header: BatchHeader, batch: memoryview) -> None:
        """A producer sends a batch, for the first time or again."""
        columns = decode_batch(bytes(batch), max_payload_bytes=PAYLOAD_BYTES)
        values = tuple(names_of(columns))
        self.cluster.world.count(COMPRESSED, header.codec != Codec.NONE)
        self.values[header.producer_id, header.producer_epoch, header.base_sequence, header.crc] = values
        for value in filter(None, values):  # A deletion of a column has no name.
            self.checked("H55", value in self._lives)
            if self._lives.setdefault(value, key) != key:
                self.breaks("H55", f"{client} sends {value} to {key}, and before to {self._lives[value]}")
        if header.producer_id < 0:
            return
        sequence = (key, header.producer_id, header.producer_epoch, header.base_sequence)
        self.checked("H51", sequence in self._contents)
        if self._contents.setdefault(sequence, header.crc) != header.crc:
            self.breaks("H51", f"{client} sends something else as sequence {sequence[1:]}: {values}")
        if header.base_sequence == 0 and header.producer_epoch > 0:
            self.cluster.world.count("producer epochs begun")

    # --- routing tables ---

    def begins(self, client: str) -> None:
        """The client is made anew, and knows nothing."""
        self._tables[client] = {}
        self._newest_life.pop(client, None)

    def forget_tables(self) -> None:
        """etcd is another one, or a generation has begun: epochs and topics of the past are back by right."""
        self._tables.clear()
        self._newest_life.clear()

    def looks(self, client: str, cluster_metadata: ClusterMetadata) -> None:
        """Compare a client's table with what it was before: no epoch and no life of a topic goes back."""
        route = cluster_metadata.topic("t")
        if route is None:
            return
        life = self.cluster.life_of(route.topic_id)
        newest = self._newest_life.get(client, life)
        self.checked("H26 in tables", life > newest)
        if life < newest:
            self.breaks("H26", f"{client} takes life {life} of the topic for the present one after {newest}")
        self._newest_life[client] = life
        table = self._tables.setdefault(client, {})
        for number, leader in enumerate(route.leaders):
            place = route.topic_id, number
            before = table.get(place, -1)
            if leader.epoch != before:
                self.checked("H4 in tables")
                if leader.epoch < before:
                    self.breaks("H4", f"{client} believes epoch {leader.epoch} of p{number} after {before}")
                table[place] = leader.epoch


class Exchange:
    """One call of a client. `answered` is called at the server, `arrived` at the client, if the answer gets there."""

    what = ""
    """For the trace: what is asked."""
    parse_request: Callable[[bytes], Any] = staticmethod(bytes)
    """Parses a request as gRPC has it."""
    parse_answer: Callable[[bytes], Any] = staticmethod(bytes)

    def __init__(self, promises: PromiseChecks, client: str, address: str, request: Any) -> None:
        self.promises = promises
        self.client = client
        self.address = address

    def answered(self, answer: Any) -> str:
        """The server answers; what the trace says of it."""
        return ""

    def refused(self, error: grpc.aio.AioRpcError) -> str:
        """The server refuses the call as a whole."""
        return f"answer to {self.client}: {type(from_rpc_error(error)).__name__}" if self.what else ""

    def arrived(self, answer: Any) -> None:
        """The client has the answer."""

    def is_leader_of(self, key: LogId, epoch: int) -> bool:
        """Whether who was asked is the leader of that epoch."""
        elected = self.promises.cluster.checks.partitions[key].sessions.get(epoch)
        return elected is not None and self.address == address_of(elected.broker_id)


@dataclass(frozen=True, slots=True)
class _SentPart:
    epoch: int
    counts: tuple[int, ...]


class Produced(Exchange):
    """A Produce."""

    parse_request = staticmethod(parse_produce_request)
    parse_answer = staticmethod(broker_pb2.ProduceResponse.FromString)

    def __init__(self, promises: PromiseChecks, client: str, address: str, request: SplicedMessage) -> None:
        super().__init__(promises, client, address, request)
        self.acks = request.message.acks
        self.ahead: dict[LogId, list[Produced]] = {}
        """By partition, the requests of its connection that the broker served when it began with this one."""
        self.behind: list[Produced] = []
        """Those that ended before it, although it is ahead of them."""
        self.is_served = True
        self.errors: dict[LogId, ErrorCode] = {}
        self.appended: set[LogId] = set()
        """Partitions without an error."""
        self.parts: dict[LogId, _SentPart] = {}
        said = []
        batches = iter(request.batches)
        for topic in request.message.topics:
            for part in topic.partitions:
                key = LogId(topic.topic.topic_id, part.partition)
                counts = []
                for data in next(batches):
                    header, view = next(iter_batches(data))
                    promises.sends(client, key, header, view)
                    counts.append(header.record_count)
                    promises.cluster.world.count("batches sent")
                    said.append(f"{promises.cluster.name_of(key)} {header.producer_epoch}.{header.base_sequence}")
                self.parts[key] = _SentPart(part.leader_epoch if part.HasField("leader_epoch") else -1, tuple(counts))
        self.what = f"produce of {client}: {', '.join(said)}"

    def _results(self, answer: broker_pb2.ProduceResponse) -> list[tuple[LogId, _SentPart, Any]]:
        found = [(LogId(topic.topic_id, part.partition), part) for topic in answer.topics for part in topic.partitions]
        return [(key, self.parts[key], part) for key, part in found]

    def _acknowledged(self, sent: _SentPart, part: Any) -> Iterable[tuple[int, int]]:
        """What is acknowledged by all: offset and number of records of each batch. With an error nothing is."""
        is_acknowledged = self.acks == broker_pb2.ACKS_ALL and not part.HasField("error")
        return zip(part.base_offsets, sent.counts, strict=False) if is_acknowledged else ()

    def answered(self, answer: broker_pb2.ProduceResponse) -> str:
        """Note what the server answers; return a line for the trace."""
        said, cluster = [], self.promises.cluster
        broker = self.promises.broker_at(self.address)
        for key, sent, part in self._results(answer):
            for base, count in self._acknowledged(sent, part):
                if broker is not None:
                    cluster.answered(broker, key, base, count)
            if part.HasField("error"):
                self.errors[key] = ErrorCode(part.error.code)
            else:
                self.appended.add(key)
            error = f", {type(from_detail(part.error)).__name__}" if part.HasField("error") else ""
            said.append(f"{cluster.name_of(key)} at {list(part.base_offsets)}{error}")
        return f"answer to {self.client}: {'; '.join(said)}"

    def check_order(self) -> None:
        """The broker has served it: it let none overtake what arrived before on its connection."""
        self.is_served = False
        for produced in (self, *self.behind):
            for key, ahead in produced.ahead.items():
                if any(other.is_served for other in ahead):
                    for other in ahead:
                        other.behind.append(produced)
                    continue
                self.promises.cluster.world.count(CHECKED + "order of a connection", bool(ahead))
                out_of_order = produced.errors.get(key) == ErrorCode.OUT_OF_ORDER_SEQUENCE
                if ahead and out_of_order and all(key in other.appended for other in ahead):
                    self.promises.breaks("order of a connection", f"{produced.what} came too early at {self.address}")

    def arrived(self, answer: broker_pb2.ProduceResponse) -> None:
        """Note what the producer now has acknowledged."""
        for key, sent, part in self._results(answer):
            for base, count in self._acknowledged(sent, part):
                if base >= 0:
                    _raise_to(self.promises.of(key).acknowledged, sent.epoch, base + count)


class Fetched(Exchange):
    """A Fetch."""

    parse_request: Callable[[bytes], Any] = staticmethod(broker_pb2.FetchRequest.FromString)
    parse_answer: Callable[[bytes], Any] = staticmethod(parse_fetch_response)

    def __init__(self, promises: PromiseChecks, client: str, address: str, request: broker_pb2.FetchRequest) -> None:
        super().__init__(promises, client, address, request)
        self.parts = {
            LogId(topic.topic.topic_id, part.partition): part.offset
            for topic in request.topics
            for part in topic.partitions
        }
        self.before = {key: promises.of(key).as_of_now() for key in self.parts}

    def arrived(self, answer: SplicedMessage) -> None:
        """Check the records that a reader receives."""
        batches = iter(answer.batches)
        for topic in answer.message.topics:
            for part in topic.partitions:
                key, (data,) = LogId(topic.topic_id, part.partition), next(batches)
                if not (part.HasField("error") or part.HasField("diverged")) and self.promises.holds(key):
                    self._check(key, part, data)

    def _check(self, key: LogId, part: Any, data: Any) -> None:
        promises, name, epoch = self.promises, f"{self.address} {self.promises.cluster.name_of(key)}", part.leader_epoch
        offset, end = self.parts[key], _end_of(data)
        committed = promises.cluster.checks.partitions[key].committed.end
        promises.checked("I10", end > offset)
        if end > max(offset, min(part.high_watermark, committed)):
            promises.breaks(
                "I10", f"{name} serves up to {end}; it says {part.high_watermark}, committed is {committed}"
            )
        known, before = promises.of(key), self.before[key]
        _raise_to(known.seen, epoch, part.high_watermark)
        if not self.is_leader_of(key, epoch):
            return
        promises.checked("I8 as answered", epoch in before.watermark)
        if part.high_watermark < before.watermark.get(epoch, -1):
            promises.breaks(
                "I8", f"{name} says the high watermark {part.high_watermark} of epoch {epoch} after {before.watermark}"
            )
        _raise_to(known.watermark, epoch, part.high_watermark)
        self.check_log_start(key, epoch, part.log_start_offset)

    def check_log_start(self, key: LogId, epoch: int, start: int) -> None:
        """A leader says where the log begins; -1: it does not know."""
        if start < 0:
            return
        promises, least = self.promises, _least(self.before[key].log_start, epoch)
        promises.checked("I18 as answered", least > 0)
        if start < least:
            promises.breaks(
                "I18", f"{self.address} {promises.cluster.name_of(key)} says the log begins at {start} after {least}"
            )
        _raise_to(promises.of(key).log_start, epoch, start)


class Listed(Fetched):
    """A ListOffsets."""

    parse_request = staticmethod(broker_pb2.ListOffsetsRequest.FromString)
    parse_answer = staticmethod(broker_pb2.ListOffsetsResponse.FromString)

    def __init__(self, promises: PromiseChecks, client: str, address: str, request: Any) -> None:
        Exchange.__init__(self, promises, client, address, request)
        self.parts = {
            LogId(topic.topic.topic_id, part.partition): part.spec
            for topic in request.topics
            for part in topic.partitions
        }
        self.before = {key: promises.of(key).as_of_now() for key in self.parts}

    def arrived(self, answer: Any) -> None:
        """Check the offsets that a client receives."""
        for topic in answer.topics:
            for part in topic.partitions:
                key = LogId(topic.topic_id, part.partition)
                if (
                    part.HasField("error")
                    or not self.promises.holds(key)
                    or not self.is_leader_of(key, part.leader_epoch)
                ):
                    continue
                if self.parts[key] == broker_pb2.OFFSET_SPEC_EARLIEST:
                    self.check_log_start(key, part.leader_epoch, part.offset)
                elif self.parts[key] == broker_pb2.OFFSET_SPEC_LATEST:
                    self._check_end(key, part.leader_epoch, part.offset)

    def _check_end(self, key: LogId, epoch: int, end: int) -> None:
        """The end of the log as a leader tells it has all that was acknowledged or visible before."""
        promises, before, name = self.promises, self.before[key], f"{self.address} {self.promises.cluster.name_of(key)}"
        acknowledged, seen = _least(before.acknowledged, epoch), _least(before.seen, epoch)
        promises.checked("freshness", acknowledged > 0)
        promises.checked("high watermark", seen > 0)
        if end < acknowledged:
            promises.breaks("freshness", f"{name} ends at {end}; acknowledged was {acknowledged}")
        if end < seen:
            promises.breaks("high watermark", f"{name} ends at {end}; a client has seen {seen}")
        _raise_to(promises.of(key).seen, epoch, end)
        _raise_to(promises.of(key).watermark, epoch, end)


_EXCHANGES: dict[str, type[Exchange]] = {"Produce": Produced, "Fetch": Fetched, "ListOffsets": Listed}
_NATIVE_EXCHANGES: dict[int, type[Exchange]] = {MethodCode.FETCH: Fetched, MethodCode.LIST_OFFSETS: Listed}


def _end_of(data: Any) -> int:
    """Where the batches end of which nothing is corrupt."""
    end = -1
    try:
        for header, view in iter_batches(data):
            check_batch(view, max_batch_bytes=1 << 20, max_records=100, max_payload_bytes=PAYLOAD_BYTES)
            end = header.end_offset
    except CorruptBatchError:
        return end
    return end
