"""Cases of headrace by name, and their targets. The peers' are in `bench.peers.catalogue`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench import limit, native_limit, replication
from bench.case import BROKER_CPU, MB, RATE, Case, Catalogue, Figure, Sample, Target
from bench.consuming import Consume
from bench.growth import LOG_READS, LongLog, Many, Recovery
from bench.latency import Latency, pauses
from bench.load import one_batch, records_a_batch
from bench.producing import Produce
from bench.stage import Meter, Stage

VALUE_BYTES = 200
SIZES = {20: "20 B", 200: "200 B", 1_000: "1 kB", 10_000: "10 kB", 100_000: "100 kB", 1_000_000: "1 MB"}
LOG_SIZES = {100_000_000: "100 MB", 1_000_000_000: "1 GB", 20_000_000_000: "20 GB"}
SLOW = 0.02
"""Share of the load for cases with one record per batch, so that none takes more than half a minute."""
OVER_GRPC = ", gRPC"
"""Suffix of the name of a case that does not use the native protocol."""
PARTITION_BATCH = 1_000
"""Records per batch in comparisons of partition counts: the same for all, and few enough for ten thousand."""
PARTITIONS = (10, 100, 1_000, 10_000)
TLS_LIMIT = "limit/TLS on a bare socket"


def grpc_limit(way: str) -> Callable[[Stage], Sample]:
    """Return a case function for plain unary gRPC calls of 1 MiB, `in` or `out`."""

    def run(stage: Stage) -> Sample:
        load, server = stage.load(VALUE_BYTES), stage.bare()
        calls = load.records // records_a_batch(VALUE_BYTES)
        batch = one_batch(load)
        limit.measure_in(server.stub, batch, 1)
        meter = Meter([server.pid])
        seconds = limit.measure_in(server.stub, batch, calls) if way == "in" else limit.measure_out(server.stub, calls)
        moved = replace(load, records=calls * records_a_batch(VALUE_BYTES))
        return Sample(meter.figures(moved, seconds, calls))

    return run


def machine_limit(name: str) -> Callable[[Stage], Sample]:
    """Return a case function for plain writes to the `page cache` or to the `disk`."""

    def run(stage: Stage) -> Sample:
        load = stage.load(VALUE_BYTES)
        batch, calls = one_batch(load), load.records // records_a_batch(VALUE_BYTES)
        work = {"page cache": limit.measure_page_cache, "disk": limit.measure_disk}
        return Sample({MB: len(batch) * calls / work[name](stage.directory(), batch, calls) / 1e6})

    return run


def sendfile_limit(stage: Stage) -> Sample:
    """Measure plain `sendfile`, and its cost for the sender."""
    load = stage.load(VALUE_BYTES)
    batch, calls = one_batch(load), load.records // records_a_batch(VALUE_BYTES)
    seconds, used = limit.measure_sendfile(stage.directory(), batch, calls)
    moved = len(batch) * calls
    return Sample({MB: moved / seconds / 1e6, BROKER_CPU: used / (moved / 1e9)})


def tls_limit(stage: Stage) -> Sample:
    """Measure bytes over TLS between two sockets, and the cost for the receiver."""
    load = stage.load(VALUE_BYTES)
    batch, calls = one_batch(load), load.records // records_a_batch(VALUE_BYTES)
    certificate = stage.cluster(tls=True).certificates.services.issue("limit")
    seconds, used = limit.measure_tls(certificate, batch, calls)
    moved = len(batch) * calls
    return Sample({MB: moved / seconds / 1e6, BROKER_CPU: used / (moved / 1e9)})


def native_limit_in(stage: Stage) -> Sample:
    """Measure frames on a socket written to the page cache with CRC checks, and the cost for the server."""
    load = stage.load(VALUE_BYTES)
    batch, calls = one_batch(load), load.records // records_a_batch(VALUE_BYTES)
    seconds, used = native_limit.measure(stage.directory(), batch, calls)
    moved = replace(load, records=calls * records_a_batch(VALUE_BYTES))
    return Sample({
        RATE: moved.records / seconds, MB: moved.total_bytes / seconds / 1e6,
        BROKER_CPU: used / (moved.total_bytes / 1e9),
    })  # fmt: skip


def failover(way: str) -> Callable[[Stage], Sample]:
    """Return a case function for the longest wait for an acknowledgement around a `kill` or `stop` of the leader."""

    def run(_: Stage) -> Sample:
        with replication.cluster() as running:
            replication.create_topic(running, 1)
            replication.wait_until_in_sync(running)
            return Sample({"longest_wait_s": replication.longest_wait(running, way, 20.0)})

    return run


def producing() -> list[Case]:
    """Return cases of batch sizes, message sizes, acks, durability and codecs, one changed at a time."""
    send = Produce(way="send")
    cases = [
        Case("produce/send", send, limit="limit/native", daily=True),
        Case(
            "produce/send, return_futures=False", replace(send, return_futures=False), limit="limit/native", daily=True
        ),
        Case("produce/send_many", Produce(), limit="limit/native", daily=True),
        Case("produce/arrow", Produce(way="arrow"), limit="limit/native", daily=True),
        Case("produce/arrow" + OVER_GRPC, Produce(way="arrow", transport="grpc"), limit="limit/in", daily=True),
        Case("produce/arrow, TLS", Produce(way="arrow", tls=True), limit=TLS_LIMIT, daily=True),
        Case("produce/send, keys, 10 partitions", replace(send, keyed=True, partitions=10), daily=True),
        Case(
            "produce/send, batch 1, acks 0",
            replace(send, batch_records=1, acks=0, return_futures=False, share=0.2),
            daily=True,
        ),
        Case("produce/send, batch 1", replace(send, batch_records=1, share=SLOW)),
        Case("produce/send, batch 50", replace(send, batch_records=50, share=0.5), daily=True),
        Case("produce/send, batch 5000", replace(send, batch_records=5_000), daily=True),
        Case("produce/send_many, batch 1", Produce(batch_records=1, share=SLOW)),
        Case("produce/send_many, batch 50", Produce(batch_records=50, share=0.5)),
        Case("produce/send_many, batch 5000", Produce(batch_records=5_000), limit="limit/native", daily=True),
        Case(
            "produce/send_many, batch 5000, fsync",
            Produce(batch_records=5_000, durability="fsync"),
            limit="limit/disk",
            daily=True,
        ),
        Case("produce/send_many, replication 3, acks all", Produce(acks="all", replication=3, share=0.5), daily=True),
        Case("produce/send_many, replication 3, acks 1", Produce(replication=3, share=0.5)),
        Case(
            "produce/send_many, replication 3, acks all, fsync",
            Produce(acks="all", replication=3, durability="fsync", share=0.5),
        ),
        Case("produce/send_many, acks 0", Produce(acks=0), limit="limit/native"),
        Case("produce/send_many, acks all", Produce(acks="all"), limit="limit/native"),
    ]
    cases += [
        Case(f"produce/{way}, {name}", Produce(way=way, value_bytes=size), limit="limit/native")
        for way in ("send", "send_many")
        for size, name in SIZES.items()
        if size != VALUE_BYTES
    ]
    cases += [
        Case(f"produce/send_many, {codec}", Produce(codec=codec, share=0.25)) for codec in ("lz4", "zstd", "gzip")
    ]
    cases += [
        Case(
            f"produce/send_many, {count} partitions",
            Produce(partitions=count, batch_records=PARTITION_BATCH),
            daily=count != 100,
        )
        for count in PARTITIONS
    ]
    return cases


def consuming() -> list[Case]:
    """Return cases of APIs, message sizes, codecs and partitions, and the same over gRPC."""
    cases = [
        Case("consume/loop", Consume("loop"), limit="limit/sendfile", daily=True),
        Case("consume/drain", Consume("drain"), limit="limit/sendfile"),
        Case("consume/poll", Consume("poll"), limit="limit/sendfile"),
        Case("consume/arrow", Consume("arrow"), limit="limit/sendfile", daily=True),
        Case("consume/loop" + OVER_GRPC, Consume("loop", transport="grpc"), limit="limit/out", daily=True),
        Case("consume/arrow, TLS", Consume(tls=True), limit=TLS_LIMIT, daily=True),
        Case("consume/arrow" + OVER_GRPC, Consume("arrow", transport="grpc"), limit="limit/out", daily=True),
    ]
    cases += [
        Case(f"consume/{way}, {name}", Consume(way, value_bytes=size), limit="limit/out")
        for way in ("loop", "arrow")
        for size, name in SIZES.items()
        if size != VALUE_BYTES
    ]
    cases += [Case(f"consume/arrow, {codec}", Consume(codec=codec, share=0.25)) for codec in ("lz4", "zstd", "gzip")]
    cases += [
        Case(
            f"consume/arrow, {count} partitions",
            Consume(partitions=count, batch_records=PARTITION_BATCH),
            daily=count != 100,
        )
        for count in PARTITIONS
    ]
    return cases


def growing() -> list[Case]:
    """Return cases of many clients, long logs, latency, recovery and failover."""
    cases = [
        Case("latency/10000 a second", Latency(), daily=True),
        Case("latency/10000 a second" + OVER_GRPC, Latency(transport="grpc"), daily=True),
        Case("latency/10000 a second, linger 5 ms", Latency(linger_ms=5)),
        Case(
            "latency/10000 a second, replication 3, acks all, fsync",
            Latency(acks="all", replication=3, durability="fsync"),
            daily=True,
        ),
        Case("latency/1000 a second", Latency(rate=1_000)),
        Case("latency/50000 a second", Latency(rate=50_000)),
    ]
    counts = (1, 2, 4, 8, 16, 32, 64)
    cases += [Case(f"clients/{count} producers", Many(count), limit="limit/native") for count in counts]
    cases += [Case(f"clients/{count} consumers", Many(count, consume=True), limit="limit/out") for count in counts]
    cases += [Case(f"log/{name}", LongLog(size)) for size, name in LOG_SIZES.items()]
    cases += [Case(f"recovery/{name}", Recovery(size), rounds=1) for size, name in LOG_SIZES.items()]
    cases += [Case(f"failover/{way}", failover(way), rounds=3) for way in ("kill", "stop")]
    return cases


LIMITS = [
    Case("limit/in", grpc_limit("in"), daily=True),
    Case("limit/out", grpc_limit("out"), daily=True),
    Case("limit/page cache", machine_limit("page cache"), daily=True),
    Case("limit/disk", machine_limit("disk"), daily=True),
    Case("limit/native", native_limit_in, daily=True),
    Case("limit/sendfile", sendfile_limit, daily=True),
    Case(TLS_LIMIT, tls_limit, daily=True),
    Case("limit/pauses", pauses, daily=True),
]


def ratio(text: str, case: str, other: str, bound: float | None, figure: str = RATE, other_figure: str = "") -> Target:
    """Return the target of a figure's ratio to that of another case."""
    return Target(text, Figure(case, figure), bound, Figure(other, other_figure or figure))


def at_most(text: str, case: str, figure: str, bound: float) -> Target:
    """Return the target of a figure that has an upper bound of its own."""
    return Target(text, Figure(case, figure), bound, at_most=True)


def cpu(text: str, case: str, other: str, bound: float) -> Target:
    """Return the target of the broker's CPU seconds per GB, of those of a bare server."""
    return Target(text, Figure(case, BROKER_CPU), bound, Figure(other, BROKER_CPU), at_most=True)


FULL, FSYNC = "produce/send_many, batch 5000", "produce/send_many, batch 5000, fsync"
REPLICATED = "produce/send_many, replication 3, acks all"
LONG_LOG, DISK_READ = "log/20 GB", "disk_read_mb_per_s"
LONG_READS = [(way, "" if transport == "native" else OVER_GRPC) for way, transport in LOG_READS.items()]
TARGETS = [
    ratio("Arrow in: of frames on a socket", "produce/arrow", "limit/native", 0.7, MB),
    ratio("send_many: of frames on a socket", "produce/send_many", "limit/native", 0.5, MB),
    ratio("send_many: of the gRPC limit", "produce/send_many", "limit/in", 1.0, MB),
    ratio("Arrow in: of the gRPC limit", "produce/arrow", "limit/in", 1.0, MB),
    ratio("batches to Arrow: of the gRPC limit", "consume/arrow", "limit/out", 1.0, MB),
    ratio("batches to Arrow: of plain sendfile", "consume/arrow", "limit/sendfile", 0.35, MB),
    ratio("Arrow in over TLS: of TLS on a bare socket", "produce/arrow, TLS", TLS_LIMIT, 0.7, MB),
    ratio("batches to Arrow over TLS: of TLS on a bare socket", "consume/arrow, TLS", TLS_LIMIT, 0.7, MB),
    ratio("send with keys over 10 partitions: of send", "produce/send, keys, 10 partitions", "produce/send", 0.8),
    Target("batch 1, acks 0: records/s", Figure("produce/send, batch 1, acks 0"), 300_000),
    Target("batch 50: records/s", Figure("produce/send, batch 50"), 1_500_000),
    ratio("fsync: of async, batch 5,000", FSYNC, FULL, 0.6),
    ratio("replication 3, acks all: of replication 1", REPLICATED, "produce/send_many", 0.5),
    at_most("p99 end to end at 10,000/s, ms", "latency/10000 a second", "p99_ms", 5.0),
    at_most(
        "p99, fsync, replication 3, acks all, ms",
        "latency/10000 a second, replication 3, acks all, fsync",
        "p99_ms",
        20.0,
    ),
    *(
        ratio(f"{count:,} partitions: of 10, {side}", f"{case}, {count} partitions", f"{case}, 10 partitions", 0.9)
        for count in (1_000, 10_000)
        for side, case in (("in", "produce/send_many"), ("out", "consume/arrow"))
    ),
    cpu("broker's CPU s/GB, in: of the gRPC limit's", "produce/send_many", "limit/in", 0.5),
    cpu("broker's CPU s/GB, out: of the gRPC limit's", "consume/arrow", "limit/out", 0.5),
    cpu("broker's CPU s/GB, out: of plain sendfile's", "consume/arrow", "limit/sendfile", 1.3),
    at_most("bytes on disk beyond a value, batch 50", "produce/send, batch 50", "disk_overhead_bytes_per_record", 5.8),
    ratio("log of 20 GB: appends, of 100 MB", LONG_LOG, "log/100 MB", 0.9, "append_records_per_s"),
    ratio("log of 20 GB: warm reads, of 100 MB", LONG_LOG, "log/100 MB", 0.9, "warm_records_per_s"),
    *(
        ratio(f"cold reads{by}: of the disk's own rate", LONG_LOG, LONG_LOG, 0.9, f"cold_{way}mb_per_s", DISK_READ)
        for way, by in LONG_READS
    ),
    *(
        ratio(
            f"writer with a reader of the oldest{by}: of alone",
            LONG_LOG,
            LONG_LOG,
            0.8,
            f"append_beside_{way}reader_records_per_s",
            "append_records_per_s",
        )
        for way, by in LONG_READS
    ),
]

CATALOGUE = Catalogue([*LIMITS, *producing(), *consuming(), *growing()], TARGETS)
