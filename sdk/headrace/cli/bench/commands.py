"""`headrace bench`: load test of a topic, at the workload's own rate, a given rate, or the maximum."""

import enum
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import Topic
from headrace.cli.common.rendering import Facts, JsonValue, Report
from headrace.cli.common.session import CommandFailed, DryRun, Session, UsageProblem, command
from headrace.cli.records.line_source import LineTooLongError, read_blocks
from headrace.cli.records.produce import (
    Acks,
    AcksOption,
    Compression,
    CompressionOption,
    InputFormat,
    LineFormat,
)

if TYPE_CHECKING:
    from headrace.cli.bench.pace import Send, SendProgress
    from headrace.cli.bench.records import Block, KeyPool
    from headrace.cli.bench.workloads import Workload

OWN_RATE, FULL_RATE = "own", "max"
DEFAULT_RECORDS = 1_000_000
"""Number of records of a generated workload without --records and --seconds."""
FLUSH_SECONDS = 120.0
PAPER_VALUE_BYTES = 200
ETC_KEYS = 1_000_000
ETC_ZIPF = 0.99


class WorkloadName(enum.StrEnum):
    """Available workloads."""

    PAPER = "paper"
    ETC = "etc"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Parameters of a load."""

    workload: WorkloadName
    # Records per second; infinity means the maximum, `None` the workload's own rate.
    rate: float | None
    speed: float
    # `None` means until the end of the file or for `seconds`.
    records: int | None
    seconds: float | None
    value_bytes: int
    keys: int
    zipf_exponent: float
    seed: int
    files: tuple[str, ...]
    lines: LineFormat


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Result of a load."""

    progress: "SendProgress"
    seconds: float
    processor_seconds: float
    # Rejected, or not acknowledged within the timeout.
    failed_records: int
    # Reason for an early or incomplete end: raised after the results are printed.
    failure: BaseException | None


@command()
def bench(
    session: Session,
    *,
    topic: Topic,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="replay: files to read; standard input if - or none is given."),
    ] = None,
    workload: Annotated[
        WorkloadName,
        typer.Option(
            "--workload",
            "-w",
            help="paper: values of 200 bytes; etc: keys and values of a large key-value store; replay: a file.",
        ),
    ] = WorkloadName.PAPER,
    rate: Annotated[
        str,
        typer.Option(
            "--rate",
            metavar="NUMBER|own|max",
            help="Records per second, regardless of their acknowledgements. own: the workload's rate (paper: max; etc: "
            "52,700 on average; replay: by the file's timestamp_ms); max: no limit.",
        ),
    ] = OWN_RATE,
    speed: Annotated[float, typer.Option("--speed", min=0.001, help="replay at its own rate: speed-up factor.")] = 1.0,
    records: Annotated[
        int | None,
        typer.Option("--records", "-n", min=1, help="Number of records; the default is 1,000,000, or the whole file."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.001, help="Duration of the load in seconds."),
    ] = None,
    value_bytes: Annotated[
        int, typer.Option("--value-bytes", min=1, max=1_000_000, help="paper: size of a value.")
    ] = PAPER_VALUE_BYTES,
    keys: Annotated[
        int, typer.Option("--keys", min=1, max=10_000_000, help="etc: number of distinct keys.")
    ] = ETC_KEYS,
    zipf_exponent: Annotated[
        float,
        typer.Option(
            "--zipf", min=0.0, max=10.0, help="etc: exponent of the Zipf distribution of keys; 0 means uniform."
        ),
    ] = ETC_ZIPF,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the generated records.")] = 1,
    input_format: Annotated[
        InputFormat, typer.Option("--input", help="replay: a line is a value, or a record as JSON.")
    ] = InputFormat.JSON,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Compression.NONE,
    linger_ms: Annotated[int, typer.Option("--linger-ms", min=0, max=60_000, help="Linger time of batches.")] = 5,
    dry_run: DryRun = False,
) -> None:
    """Run a load against a topic and print its throughput and the latency since each record was due.

    Ctrl-C stops early and still prints the results.

    \b
    Examples:
      headrace bench clicks
      headrace bench clicks --workload etc --rate 20000 --seconds 60
      headrace bench clicks records.jsonl --workload replay --speed 10
    """
    plan = LoadPlan(
        workload=workload,
        rate=_rate(rate),
        speed=speed,
        records=records,
        seconds=seconds,
        value_bytes=value_bytes,
        keys=keys,
        zipf_exponent=zipf_exponent,
        seed=seed,
        files=tuple(files or ()),
        lines=LineFormat(input_format),
    )
    _check(plan)
    with session.admin() as admin:
        partitions = len(admin.describe_topic(topic).partitions)
    blocks = _blocks(session, plan, partitions)
    settings = {"acks": acks.value, "compression_type": compression.value, "linger_ms": linger_ms}
    try:
        outcome = _send(plan, blocks, lambda _: None) if dry_run else _produce(session, topic, plan, blocks, settings)
    except (ValueError, LineTooLongError) as problem:
        raise CommandFailed(ExitCode.FAILED, str(problem)) from None
    document = _document(plan, topic, outcome, dry_run=dry_run)
    session.show(Report(document, (Facts(tuple(_facts(document))),)))
    if outcome.failure is not None:
        raise outcome.failure


def _produce(
    session: Session, topic: str, plan: LoadPlan, blocks: "Iterator[Block]", settings: dict[str, Any]
) -> LoadOutcome:
    """Send the load with a new producer."""
    with session.clients.producer(**session.settings(), **settings) as producer:
        return _send(
            plan,
            blocks,
            lambda part: producer.send_many(
                topic, part.values, keys=part.keys, headers=part.headers, partition=part.partition
            ),
            producer,
        )


def _send(plan: LoadPlan, blocks: "Iterator[Block]", send: "Send", producer: Any = None) -> LoadOutcome:
    """Send the load and wait for its acknowledgement; after Ctrl-C wait only for what has been sent."""
    from headrace.cli.bench.pace import SendProgress, send_paced

    failure: BaseException | None = None
    progress, failed_records = SendProgress(), 0
    used, started = time.process_time(), time.perf_counter()
    try:
        send_paced(blocks, send, time.perf_counter, time.sleep, plan.seconds, progress)
    except KeyboardInterrupt as stop:
        failure = stop
    if producer is not None:
        from headrace.client.base.errors import DeliveryError

        try:
            producer.flush(FLUSH_SECONDS)
        except DeliveryError as error:
            failure, failed_records = failure or error, error.failed_records + error.pending_records
        # Ctrl-C may arrive between a send and its count; the producer has the exact count.
        progress.records = producer.stats().sent_records + failed_records
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - used
    return LoadOutcome(progress, seconds, processor_seconds, failed_records, failure)


def _rate(text: str) -> float | None:
    if text == OWN_RATE:
        return None
    if text == FULL_RATE:
        return math.inf
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise UsageProblem(f"--rate {text!r} is not a number of records a second, own or max")
    return rate


def _check(plan: LoadPlan) -> None:
    """Check for options without an effect.

    Raises:
        UsageProblem: If an option has no effect; the message names it.
    """
    replay = plan.workload is WorkloadName.REPLAY
    if plan.files and not replay:
        raise UsageProblem(f"--workload {plan.workload} makes its records; files are for --workload replay")
    if plan.value_bytes != PAPER_VALUE_BYTES and plan.workload is not WorkloadName.PAPER:
        raise UsageProblem("--value-bytes is for --workload paper; others have values of their own")
    if (plan.keys, plan.zipf_exponent) != (ETC_KEYS, ETC_ZIPF) and plan.workload is not WorkloadName.ETC:
        raise UsageProblem("--keys and --zipf are for --workload etc; the paper's has no keys, a file has its own")
    if plan.speed != 1.0 and not (replay and plan.rate is None):
        raise UsageProblem("--speed is for --workload replay at --rate own")
    if replay and plan.rate is None and plan.lines.input is InputFormat.LINES:
        raise UsageProblem("plain lines have no times; give --rate, or --input json with timestamp_ms in each line")


def _blocks(session: Session, plan: LoadPlan, partitions: int) -> "Iterator[Block]":
    """Return the records, in blocks."""
    from headrace.cli.bench.records import Timetable, made_blocks, read_blocks_of

    if plan.workload is WorkloadName.REPLAY:
        timetable = Timetable(plan.speed, plan.rate)
        return read_blocks_of(read_blocks(plan.files), plan.lines.record, timetable, plan.records)
    workload, pool = _made(session, plan, partitions)
    return made_blocks(workload, _count(plan), pool, plan.seed)


def _made(session: Session, plan: LoadPlan, partitions: int) -> "tuple[Workload, KeyPool | None]":
    from headrace.cli.bench.records import KeyPool
    from headrace.cli.bench.workloads import EtcWorkload, PaperWorkload

    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise CommandFailed(
            ExitCode.FAILED, f"--workload {plan.workload} needs pyarrow; install headrace[arrow]"
        ) from None
    if plan.workload is WorkloadName.PAPER:
        return PaperWorkload(plan.value_bytes, math.inf if plan.rate is None else plan.rate), None
    session.detail(f"making {plan.keys:,} keys")
    return EtcWorkload(plan.keys, plan.zipf_exponent, plan.rate, plan.seed), KeyPool(plan.keys, partitions, plan.seed)


def _count(plan: LoadPlan) -> int:
    """Return the number of records to generate; those after `seconds` are not sent."""
    if plan.records is not None:
        return plan.records
    return 2**62 if plan.seconds is not None else DEFAULT_RECORDS


def _document(plan: LoadPlan, topic: str, outcome: LoadOutcome, *, dry_run: bool) -> dict[str, JsonValue]:
    """Return the result as a document."""
    from headrace.cli.bench.pace import percentiles_ms

    progress, elapsed = outcome.progress, outcome.seconds
    paced = progress.due_s > 0
    rate = plan.rate if plan.rate is not None and plan.rate < math.inf else None
    document: dict[str, Any] = {
        "topic": topic,
        "workload": plan.workload.value,
        "records": progress.records,
        "failed_records": outcome.failed_records,
        "bytes": progress.bytes,
        "seconds": round(elapsed, 3),
        "records_per_second": round(progress.records / elapsed) if elapsed else 0,
        "megabytes_per_second": round(progress.bytes / elapsed / 1e6, 3) if elapsed else 0.0,
        "asked_records_per_second": rate,
        "processor_seconds": round(outcome.processor_seconds, 3),
        "late_ms": percentiles_ms(progress.late_s) if paced else None,
        "acknowledged_ms": percentiles_ms(progress.waits_s) if paced and not dry_run else None,
        "dry_run": dry_run,
    }
    return document


def _facts(document: dict[str, Any]) -> Iterator[tuple[str, JsonValue]]:
    """Yield the result for people, with `late_ms` and `acknowledged_ms` on one line each."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield name, ", ".join(f"{key} {number}" for key, number in value.items())
        elif value is not None:
            yield name, value
