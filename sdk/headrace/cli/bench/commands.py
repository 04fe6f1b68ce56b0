"""`headrace bench`: load test of a topic, at the workload's own rate, a given rate, or the maximum."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
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
    from headrace.cli.bench.models import WorkloadModel
    from headrace.cli.bench.pace import Send, SendProgress
    from headrace.cli.bench.records import Block, RecordColumns
    from headrace.client.admin.rpc import TopicDescription

    Rest = Callable[[], Iterator[RecordColumns]]
    """Function that returns the records to send after the blocks."""

OWN_RATE, FULL_RATE = "own", "max"
DEFAULT_RECORDS = 1_000_000
"""Number of records of a generated workload without --records and --seconds."""
FLUSH_SECONDS = 120.0
CLOSE_SECONDS = 1.0
"""Wait at the end of a load that has failed."""
PAPER_VALUE_BYTES = 200
PAPER, REPLAY, FITTED = "paper", "replay", "fitted:"
POOL_NAMES = ("usr", "app", "etc", "var", "sys")
"""Workloads of key-value stores: keys of `headrace.cli.bench.models.POOLS`."""
WORKLOADS = (PAPER, *POOL_NAMES, REPLAY)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Parameters of a load."""

    # One of `WORKLOADS`, or `FITTED` and the file of a model.
    workload: str
    # Records per second; infinity means the maximum, `None` the workload's own rate.
    rate: float | None
    speed: float
    # `None` means until the end of the file or for `seconds`.
    records: int | None
    seconds: float | None
    value_bytes: int
    # `None` means those of the model.
    keys: int | None
    zipf_exponent: float | None
    # Fraction of keys of a trace to send instead of the records; `None` sends the records.
    trace: float | None
    seed: int
    files: tuple[str, ...]
    lines: LineFormat


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Result of a load."""

    progress: "SendProgress"
    seconds: float
    processor_seconds: float
    # Generated records or requests; less than `progress.records` before the last are acknowledged.
    requests: int
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
        str,
        typer.Option(
            "--workload",
            "-w",
            metavar="|".join((*WORKLOADS, f"{FITTED}FILE")),
            autocompletion=lambda: [*WORKLOADS, FITTED],
            help="paper: values of 200 bytes; usr, app, etc, var, sys: pools of a large key-value store; replay: a "
            "file; fitted:FILE: the model of a trace, which spark_jobs.workload wrote.",
        ),
    ] = PAPER,
    rate: Annotated[
        str,
        typer.Option(
            "--rate",
            metavar="NUMBER|own|max",
            help="Records per second, regardless of their acknowledgements. own: the workload's rate (paper: max; etc: "
            "52,700 on average; replay: by the file's timestamp_ms; pools and models: by the hour of the day, UTC); "
            "max: no limit.",
        ),
    ] = OWN_RATE,
    speed: Annotated[
        float, typer.Option("--speed", min=0.001, help="All but paper, at its own rate: speed-up factor.")
    ] = 1.0,
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
        int | None,
        typer.Option(
            "--keys", min=1, max=10_000_000, help="Pools: number of keys that are used again; the default is 1,000,000."
        ),
    ] = None,
    zipf_exponent: Annotated[
        float | None,
        typer.Option(
            "--zipf",
            min=0.0,
            max=10.0,
            help="Pools: exponent of the Zipf distribution of keys; 0 means uniform. The default is 0.99.",
        ),
    ] = None,
    trace: Annotated[
        float | None,
        typer.Option(
            "--trace",
            metavar="FRACTION",
            min=0.0001,
            max=1.0,
            help="Pools and models: send a request trace instead of records, as brokers would record it of this "
            "fraction of the keys, to try spark_jobs.workload. With --rate max its times are those of --rate own.",
        ),
    ] = None,
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

    A topic has no reads: each request of a pool or model is sent as a record with its key and a value of its size,
    whatever its operation. Ctrl-C stops early and still prints the results.

    \b
    Examples:
      headrace bench clicks
      headrace bench clicks --workload etc --rate 20000 --seconds 60
      headrace bench clicks records.jsonl --workload replay --speed 10
      headrace bench clicks --workload fitted:report/model.json
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
        trace=trace,
        seed=seed,
        files=tuple(files or ()),
        lines=LineFormat(input_format),
    )
    _check(plan)
    with session.admin() as admin:
        description = admin.describe_topic(topic)
    blocks, rest = _blocks(session, plan, topic, description)
    settings = {"acks": acks.value, "compression_type": compression.value, "linger_ms": linger_ms}
    try:
        outcome = (
            _send(plan, blocks, rest, lambda _: None)
            if dry_run
            else _produce(session, topic, plan, blocks, rest, settings)
        )
    except (ValueError, LineTooLongError) as problem:
        raise CommandFailed(ExitCode.FAILED, str(problem)) from None
    document = _document(plan, topic, outcome, dry_run=dry_run)
    session.show(Report(document, (Facts(tuple(_facts(document))),)))
    if outcome.failure is not None:
        raise outcome.failure


def _produce(
    session: Session, topic: str, plan: LoadPlan, blocks: "Iterator[Block]", rest: "Rest", settings: dict[str, Any]
) -> LoadOutcome:
    """Send the load with a new producer."""
    from headrace.wire.errors import HeadraceError

    with session.clients.producer(**session.settings(), **settings) as producer:
        outcome = _send(
            plan,
            blocks,
            rest,
            lambda part: producer.send_many(
                topic, part.values, keys=part.keys, headers=part.headers, partition=part.partition
            ),
            producer,
        )
        if outcome.failure is not None:
            with contextlib.suppress(HeadraceError):  # It is in the outcome.
                producer.close(CLOSE_SECONDS)
        return outcome


def _send(plan: LoadPlan, blocks: "Iterator[Block]", rest: "Rest", send: "Send", producer: Any = None) -> LoadOutcome:
    """Send the load and wait for its acknowledgement; after an error or Ctrl-C wait only for what has been sent, and
    not after another Ctrl-C.
    """
    from headrace.cli.bench.pace import SendProgress, send_paced
    from headrace.wire.errors import HeadraceError

    failure: BaseException | None = None
    progress, failed_records = SendProgress(), 0
    used, started = time.process_time(), time.perf_counter()
    try:
        send_paced(blocks, send, time.perf_counter, time.sleep, plan.seconds, progress)
        for part in rest():
            send(part)
            progress.bytes += part.size_bytes
    except KeyboardInterrupt as stop:
        failure = stop
    except HeadraceError as error:
        if not progress.records:
            raise
        failure = error
    requests = progress.records
    if producer is not None:
        from headrace.client.base.errors import DeliveryError

        try:
            producer.flush(FLUSH_SECONDS)
        except DeliveryError as error:
            failure, failed_records = failure or error, error.failed_records + error.pending_records
        except KeyboardInterrupt as stop:
            failure = failure or stop
        # Ctrl-C may arrive between a send and its count; the producer has the exact count.
        progress.records = producer.stats().sent_records + failed_records
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - used
    return LoadOutcome(progress, seconds, processor_seconds, requests, failed_records, failure)


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
    replay, paper = plan.workload == REPLAY, plan.workload == PAPER
    pool, fitted = plan.workload in POOL_NAMES, plan.workload.startswith(FITTED)
    if not (replay or paper or pool or fitted):
        known = ", ".join((*WORKLOADS, f"{FITTED}FILE"))
        raise UsageProblem(f"--workload {plan.workload!r} is unknown; choose one of {known}")
    if plan.files and not replay:
        raise UsageProblem(f"--workload {plan.workload} makes its records; files are for --workload replay")
    if plan.value_bytes != PAPER_VALUE_BYTES and not paper:
        raise UsageProblem("--value-bytes is for --workload paper; others have values of their own")
    if (plan.keys, plan.zipf_exponent) != (None, None) and not pool:
        pools = ", ".join(POOL_NAMES)
        raise UsageProblem(f"--keys and --zipf are for --workload {pools}; others have keys of their own, or none")
    if plan.trace is not None and not (pool or fitted):
        raise UsageProblem(f"--trace is for --workload {', '.join(POOL_NAMES)} and {FITTED}FILE")
    if plan.speed != 1.0 and (paper or plan.rate is not None):
        raise UsageProblem("--speed is for workloads with a rate of their own, all but paper, at --rate own")
    if replay and plan.rate is None and plan.lines.input is InputFormat.LINES:
        raise UsageProblem("plain lines have no times; give --rate, or --input json with timestamp_ms in each line")


def _blocks(
    session: Session, plan: LoadPlan, topic: str, description: "TopicDescription"
) -> "tuple[Iterator[Block], Rest]":
    """Return the records in blocks, and what remains to be sent after them."""
    from headrace.cli.bench.records import KeyPool, Timetable, made_blocks, read_blocks_of
    from headrace.cli.bench.workloads import ModelWorkload, PaperWorkload

    if plan.workload == REPLAY:
        timetable = Timetable(plan.speed, plan.rate)
        return read_blocks_of(read_blocks(plan.files), plan.lines.record, timetable, plan.records), _nothing
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise CommandFailed(
            ExitCode.FAILED, f"--workload {plan.workload} needs pyarrow; install headrace[arrow]"
        ) from None
    if plan.workload == PAPER:
        workload = PaperWorkload(plan.value_bytes, math.inf if plan.rate is None else plan.rate)
        return made_blocks(workload, _count(plan), None, plan.seed), _nothing
    model = _model(plan)
    session.detail(f"making {model.keys:,} keys")
    at_once = plan.rate == math.inf
    now_us = time.time_ns() // 1_000
    requests = ModelWorkload(model, None if at_once else plan.rate, plan.seed, now_us / 3.6e9 % 24)
    pool = KeyPool(model.keys, len(description.partitions), plan.seed, model.key_bytes)
    blocks = made_blocks(requests, _count(plan), pool, plan.seed, math.inf if at_once else plan.speed)
    if plan.trace is None:
        return blocks, _nothing
    from headrace.cli.bench.traced import TraceRecorder, traced_blocks

    recorder = TraceRecorder(model, topic, description.topic_id, now_us, plan.trace, plan.seed)
    return traced_blocks(blocks, recorder), recorder.columns


def _nothing() -> "Iterator[RecordColumns]":
    return iter(())


def _model(plan: LoadPlan) -> "WorkloadModel":
    """Return the model of a pool, with the keys of the command line, or that of a file.

    Raises:
        UsageProblem: If the file cannot be read or has no model.
    """
    from headrace.cli.bench.models import POOLS, model_of

    if plan.workload in POOL_NAMES:
        model = POOLS[plan.workload]
        keys, exponent = plan.keys, plan.zipf_exponent
        return replace(
            model,
            keys=model.keys if keys is None else keys,
            zipf_exponent=model.zipf_exponent if exponent is None else exponent,
        )
    file = plan.workload.removeprefix(FITTED)
    try:
        return model_of(Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageProblem(f"--workload {plan.workload}: {error}") from None


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
        "workload": plan.workload,
        "records": progress.records,
        **({} if plan.trace is None else {"traced_requests": outcome.requests}),
        "failed_records": outcome.failed_records,
        "bytes": progress.bytes,
        "seconds": round(elapsed, 3),
        "records_per_second": round(progress.records / elapsed) if elapsed else 0,
        "megabytes_per_second": round(progress.bytes / elapsed / 1e6, 3) if elapsed else 0.0,
        "asked_records_per_second": rate,
        "processor_seconds": round(outcome.processor_seconds, 3),
        "late_ms": percentiles_ms(progress.late) if paced else None,
        "acknowledged_ms": percentiles_ms(progress.acknowledged) if paced and not dry_run else None,
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
