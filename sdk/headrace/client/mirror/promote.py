"""`headrace.promote`: the topics of a directory become topics of a cluster, with the same offsets."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

from headrace.client.admin.partition_calls import PartitionCalls
from headrace.client.base.config import AdminConfig, build
from headrace.client.base.errors import ConfigError
from headrace.client.base.settings_types import AdminSettings
from headrace.client.mirror.copying import CopyLimits, CopyState, PartitionCopy, Side
from headrace.client.mirror.followed_topics import own_settings
from headrace.client.opened.directory import LogDirectory
from headrace.display.progress import progress_bar
from headrace.wire.batch import iter_batches
from headrace.wire.errors import (
    HeadraceError,
    OffsetOutOfRangeError,
    TimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicError,
)
from headrace.wire.ids import TopicPartition

Result = TypeVar("Result")

CONCURRENT_COPIES = 8
"""Partitions that are copied at the same time."""
COMMIT_SECONDS = 60.0
"""Time for the last records to be replicated."""
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class PromotedTopic:
    """Topic that was promoted."""

    name: str
    """Its name in the cluster."""
    end_offsets: dict[int, int]
    """By partition."""
    size_bytes: int = 0
    """Bytes that this call has copied."""
    groups: list[str] = field(default_factory=list)
    """Groups whose offsets this call has stored in the cluster."""
    refused_groups: dict[str, HeadraceError] = field(default_factory=dict)
    """Groups whose offsets were not stored, and why: the cluster's group of that name has members."""
    was_promoted: bool = False
    """An earlier call has promoted it."""


def promote(
    directory: str | os.PathLike[str],
    topics: Sequence[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    replication_factor: int = 0,
    bytes_per_second: int = 0,
    progress: Callable[[CopyState], object] | None = None,
    **settings: Unpack[AdminSettings],
) -> list[PromotedTopic]:
    """Copy topics of a directory to a cluster, with their offsets, checksums, settings and groups' offsets.

    Until all records are there, the cluster's topics are read only; the same call continues one that was interrupted,
    and stores offsets of groups that were refused. The directory stays as it is, and no process may write to it
    meanwhile. Leader epochs are the cluster's own.

    Args:
        directory: path of the directory; see `open`.
        topics: their names; `None` means all.
        names: other names in the cluster, by name in the directory.
        replication_factor: replicas in the cluster; 0 means its default.
        bytes_per_second: limit of the copy; 0 means none.
        progress: called after each append.
        settings: of the cluster, see `AdminConfig`.

    Raises:
        TopicAlreadyExistsError: If the cluster has another topic of the name; give it another one by `names`.
        DirectoryInUseError: If another process writes to the directory.
        UnknownTopicError: If the directory has no such topic.
        NoBrokersAvailableError: If no address responded.
        HeadraceError: As `open`.
    """
    if build(AdminConfig, settings).directory:
        raise ConfigError("topics are promoted to a cluster, and bootstrap_servers is a directory")
    if not os.path.isdir(directory):
        raise ConfigError(f"there is no directory {os.fspath(directory)!r}")
    with LogDirectory(directory) as log:
        log._server.directory.writer()
        found = log.topics()
        for name in topics or ():
            if name not in found:
                raise UnknownTopicError(f"{directory} has no topic {name!r}; it has {', '.join(found) or 'none'}")
        renamed = dict(names or {})
        wanted = {name: renamed.get(name, name) for name in (found if topics is None else topics)}
        promotion = _Promotion(wanted, replication_factor, bytes_per_second, progress or (lambda state: None))
        return run_apart(promotion.run(log.bootstrap_servers, settings))


def run_apart(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on an event loop of its own: on another thread if this one has a loop that runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="headrace-promote", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class _Promotion:
    """One call."""

    def __init__(
        self,
        names: Mapping[str, str],
        replication_factor: int,
        bytes_per_second: int,
        progress: Callable[[CopyState], object],
    ) -> None:
        self._names = names
        self._replication_factor = replication_factor
        self._limits = CopyLimits(bytes_per_second)
        self._progress = progress

    async def run(self, source: str, settings: Mapping[str, Any]) -> list[PromotedTopic]:
        """Promote all topics of a directory, whose address is `source`."""
        async with Side({"bootstrap_servers": source}) as old, Side(settings) as new:
            done = [await self._copy(old, new, name, target) for name, target in self._names.items()]
            for name, each in zip(self._names, done, strict=True):
                await _wait_committed(new, each)
                await _follow_log_starts(old, name, new, each)
            await self._copy_groups(old, new, done)
            for each in done:
                if not each.was_promoted:
                    await new.admin.alter_config(each.name, unset=["mirror"])
            return done

    async def _copy(self, old: Side, new: Side, name: str, target: str) -> PromotedTopic:
        """Copy the records of one topic."""
        described = await old.admin.describe_topic(name)
        mirror = f"promote-{described.topic_id.hex()[:16]}"
        ends = {tp.partition: at.offset for tp, at in (await old.admin.list_offsets(name, "latest")).items()}
        promoted = PromotedTopic(target, ends)
        configs = await own_settings(old.admin, name, without={"placement"})
        created = await new.admin.create_topic(
            target, len(ends), self._replication_factor, {**configs, "mirror": mirror}, exist_ok=True
        )
        source = old.topic(name, described.topic_id)
        if (await new.admin.describe_config(target))["mirror"].value != mirror:
            if len(created.partitions) != len(ends) or not await _is_copy(old, source, new, created, ends):
                raise TopicAlreadyExistsError(
                    f"the cluster has another topic named {target}",
                    action=f"Name it otherwise: names={{{name!r}: ...}}, or headrace promote --as {name}=NAME.",
                )
            promoted.was_promoted = True
            return promoted
        calls = new.topic(target, created.topic_id)
        room = asyncio.Semaphore(CONCURRENT_COPIES)

        states: dict[int, CopyState] = {}

        def advance(state: CopyState) -> None:
            states[state.partition] = state
            promoted.size_bytes = sum(each.size_bytes for each in states.values())
            bar.reach(sum(each.end_offset for each in states.values()), f"{promoted.size_bytes / 1e6:,.1f} MB")
            self._progress(state)

        async def copy(number: int, end_offset: int) -> None:
            async with room:
                await PartitionCopy(number, (old, source), (new, calls), self._limits, advance).run(end_offset)

        with progress_bar(f"promote {name}", "records", sum(ends.values())) as bar:
            try:
                async with asyncio.TaskGroup() as tasks:
                    for number, end in ends.items():
                        tasks.create_task(copy(number, end))
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None
        return promoted

    async def _copy_groups(self, old: Side, new: Side, promoted: Sequence[PromotedTopic]) -> None:
        """Store the offsets of the directory's groups in the cluster."""
        for listed in await old.admin.list_groups():
            offsets = await old.admin.group_offsets(listed.group_id)
            for source, each in zip(self._names, promoted, strict=True):
                here = {
                    TopicPartition(each.name, tp.partition): committed.offset
                    for tp, committed in offsets.items()
                    if tp.topic == source
                }
                if here:
                    await _store_offsets(new, each, listed.group_id, here)


async def _store_offsets(new: Side, promoted: PromotedTopic, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Store a group's offsets in a topic.

    If an earlier call has promoted the topic, those that the cluster has stay: the group may have read there since.
    """
    try:
        if promoted.was_promoted:
            stored = await new.admin.group_offsets(group)
            offsets = {tp: offset for tp, offset in offsets.items() if tp not in stored}
            if not offsets:
                return
        results = await new.admin.reset_group_offsets(group, offsets)
        problem = next((result.error for result in results if result.error is not None), None)
    except HeadraceError as error:
        problem = error
    if problem is None:
        promoted.groups.append(group)
    else:
        promoted.refused_groups[group] = problem


async def _is_copy(old: Side, source: PartitionCalls, new: Side, created: Any, ends: Mapping[int, int]) -> bool:
    """Return whether the cluster's topic continues the directory's: an earlier call has promoted it.

    Of an empty one that can only be told while both are empty.
    """
    target = new.topic(created.name, created.topic_id)
    for number, end_offset in ends.items():
        if end_offset:
            ours = await old.run(source.batch_with(number, end_offset - 1))
            if ours is None:  # All of its records were deleted.
                chain = await _chain_at(old, source, number, end_offset)
                is_same = chain is not None and chain == await _chain_at(new, target, number, end_offset)
            else:
                is_same = ours == await new.run(target.batch_with(number, end_offset - 1))
            if not is_same:
                return False
    if any(ends.values()):
        return True
    return not any(at.offset for at in (await new.admin.list_offsets(created.name, "latest")).values())


async def _chain_at(side: Side, calls: PartitionCalls, number: int, offset: int) -> int | None:
    """Return the chain value before the first record of a log, which begins at an offset; `None` if it does not."""
    try:
        fetched = await side.run(calls.fetch(number, offset, max_wait_ms=0, max_bytes=1))
    except OffsetOutOfRangeError:
        return None
    first = next((header for header, _ in iter_batches(fetched.batches)), None)
    if first is None:
        return fetched.chain_crc
    return first.previous_crc if first.base_offset == offset else None


async def _follow_log_starts(old: Side, name: str, new: Side, promoted: PromotedTopic) -> None:
    """Delete what the directory has deleted."""
    if promoted.was_promoted:
        return
    starts = {tp.partition: at.offset for tp, at in (await old.admin.list_offsets(name, "earliest")).items()}
    ours = {tp.partition: at.offset for tp, at in (await new.admin.list_offsets(promoted.name, "earliest")).items()}
    later = {number: start for number, start in starts.items() if start > ours[number]}
    if later:
        await new.admin.delete_records(promoted.name, later)


async def _wait_committed(side: Side, promoted: PromotedTopic) -> None:
    """Wait until the cluster has replicated all records. Raises TimedOutError."""
    try:
        async with asyncio.timeout(COMMIT_SECONDS):
            while True:
                found = await side.admin.list_offsets(promoted.name, "latest")
                ends = {tp.partition: at.offset for tp, at in found.items()}
                if all(ends[number] >= end for number, end in promoted.end_offsets.items()):
                    return
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise TimedOutError(
            f"topic {promoted.name} was not replicated within {COMMIT_SECONDS:.0f} s",
            action="See headrace topic describe for its replicas, then promote again: the copy continues.",
        ) from None
