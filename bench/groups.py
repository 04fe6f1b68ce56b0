"""`python -m bench.groups`: load of a large consumer group on two coordinators and one etcd.

Members are bare calls in one process: all join at once, then idle, then each commits all its partitions once per
second, then one more joins and leaves every second, then members die or leave, then one instance after the other
restarts. Prints JSON. Next to heartbeats it prints no-op calls to the same coordinator, and how long it waited for a
core, which shows the effect of a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import grpc
import headrace
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace.v1 import groups_pb2, groups_pb2_grpc
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.metastore.etcd import EtcdMetastore

from bench.open_loop import percentiles
from bench.processor import processor_seconds

GROUP = "bench"
TOPICS = 10
CALL_SECONDS = 10.0
POLL_SECONDS = 0.005

app = typer.Typer(add_completion=False, help=__doc__)
Partition = tuple[bytes, int]


class Member:
    """Member after the contract of `groups.proto` that releases revoked partitions at once."""

    def __init__(self, stub: Any, session_timeout_ms: int, instance_id: str = "") -> None:
        self._stub = stub
        self._session_timeout_ms = session_timeout_ms
        self.instance_id = instance_id
        self._member_id = secrets.token_bytes(16)
        self._epoch = self._revision = self._number = self._said_epoch = 0
        self.owned: dict[Partition, None] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def has_news(self) -> bool:
        """Whether its next heartbeat is the first to report a change of its owned partitions."""
        return self._said_epoch != self._epoch

    async def heartbeat(self, max_wait_ms: int) -> float:
        """Send a heartbeat and apply the response; return the duration of the call in seconds."""
        request = groups_pb2.HeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=self.instance_id,
            topic_pattern="bench-*",
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=60_000,
            known_revision=self._revision,
            max_wait_ms=max_wait_ms,
        )
        if self._epoch:
            request.owned.topics.extend(groups_pb2.GroupTopicPartitions(**topic) for topic in self._by_topic())
            request.owned.SetInParent()
        self._said_epoch = self._epoch
        started = time.monotonic()
        answer = await self._stub.Heartbeat(request, timeout=CALL_SECONDS)
        took = time.monotonic() - started
        self._epoch, self._revision = answer.member_epoch, answer.revision
        self.owned = {(topic.topic_id, number): None for topic in answer.assigned for number in topic.partitions}
        return took

    def _by_topic(self) -> Iterable[dict[str, Any]]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, number in self.owned:
            topics.setdefault(topic_id, []).append(number)
        return ({"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in topics.items())

    async def commit(self) -> float:
        """Commit all owned partitions; return the duration in seconds."""
        self._number += 1
        request = groups_pb2.CommitOffsetsRequest(
            group_id=GROUP, member_id=self._member_id, member_epoch=self._epoch, commit_number=self._number
        )
        for topic in self._by_topic():
            entry = request.topics.add(topic_id=topic["topic_id"])
            for number in topic["partitions"]:
                entry.partitions.add(partition=number, offset=self._number, leader_epoch=0)
        started = time.monotonic()
        answer = await self._stub.CommitOffsets(request, timeout=CALL_SECONDS)
        assert not any(each.HasField("error") for topic in answer.topics for each in topic.partitions)
        return time.monotonic() - started

    def start(self) -> None:
        """Join and send heartbeats."""
        self.task = asyncio.create_task(self._stay())

    async def _stay(self) -> None:
        before = self._epoch
        while True:
            await self.heartbeat(3_000 if self._epoch == before else 0)
            before = self._epoch

    async def die(self) -> None:
        """Stop sending heartbeats without leaving."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        self.owned = {}

    async def leave(self) -> None:
        """Leave the group."""
        await self.die()
        request = groups_pb2.LeaveGroupRequest(group_id=GROUP, member_id=self._member_id)
        await self._stub.LeaveGroup(request, timeout=CALL_SECONDS)


async def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> float:
    """Return the seconds until `condition` held."""
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - started


def figures(seconds: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    return percentiles(1_000 * each for each in seconds)


@dataclass(slots=True)
class Heartbeats:
    """Durations in seconds of the heartbeats of one period, by kind, and of calls made meanwhile."""

    same: list[float] = field(default_factory=list)
    """Heartbeats of members with unchanged partitions."""
    news: list[float] = field(default_factory=list)
    """Heartbeats of members with revoked or granted partitions: these wait for a group transaction."""
    bare: list[float] = field(default_factory=list)
    """Calls of the health service."""

    def shown(self, pid: int, used: Usage, seconds: int) -> dict[str, Any]:
        """Return the result; `used` is the usage of the coordinator's process before."""
        now = usage(pid)
        return {
            **figures(self.same),
            **({"that_wait_for_a_round": {"count": len(self.news), **figures(self.news)}} if self.news else {}),
            "a_call_that_does_nothing": figures(self.bare),
            "coordinator_processor_ms_a_second": round(1_000 * (now.processor_s - used.processor_s) / seconds),
            "coordinator_waited_for_a_core_ms_a_second": round(1_000 * (now.waited_s - used.waited_s) / seconds),
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU usage of a process."""

    processor_s: float
    waited_s: float
    """Time for which its threads were runnable but not running."""


def usage(pid: int) -> Usage:
    """Return the usage of a process so far."""
    waited_ns = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as schedstat:
            waited_ns += int(schedstat.read().split()[1])
    return Usage(processor_seconds(pid), waited_ns / 1e9)


async def heartbeats(
    address: str, pid: int, group: list[Member], seconds: int, meanwhile: Callable[[], Awaitable[object]] | None = None
) -> dict[str, Any]:
    """Make each member send one additional heartbeat per second, while `meanwhile` runs."""
    found, used = Heartbeats(), usage(pid)

    async def one(member: Member) -> float:
        to = found.news if member.has_news else found.same
        to.append(took := await member.heartbeat(0))
        return took

    async def bare_calls() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                started = time.monotonic()
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
                found.bare.append(time.monotonic() - started)
                await asyncio.sleep(0.02)

    calls = asyncio.create_task(bare_calls())
    await asyncio.gather(spread(one, group, seconds), *([meanwhile()] if meanwhile else []))
    calls.cancel()
    await asyncio.wait([calls])
    return found.shown(pid, used, seconds)


async def come_and_go(make: Callable[[], Member], seconds: int) -> None:
    """Make one more member join and leave every second."""
    for _ in range(seconds):
        member = make()
        member.start()
        await asyncio.sleep(0.5)
        await member.leave()
        await asyncio.sleep(0.5)


async def spread(action: Callable[[Member], Awaitable[float]], members: list[Member], seconds: int) -> list[float]:
    """Make each member act once per second, evenly spread; return the durations."""

    async def each(index: int, member: Member) -> list[float]:
        start = time.monotonic() + index / len(members)
        took = []
        for turn in range(seconds):
            await asyncio.sleep(max(0.0, start + turn - time.monotonic()))
            took.append(await action(member))
        return took

    return [took for one in await asyncio.gather(*map(each, range(len(members)), members)) for took in one]


async def measure(running: LocalCluster, *, members: int, partitions: int, session_s: float, seconds: int) -> None:
    """Run all cases on one cluster and print the results."""
    channels = [grpc.aio.insecure_channel(part.address) for part in running.coordinators]
    # A group's calls go to one coordinator, as those of clients; the others are idle.
    stub = groups_pb2_grpc.GroupServiceStub(channels[0])
    metastore = EtcdMetastore([running.etcd.endpoint])

    async def revision() -> int:
        return (await metastore.status()).revision

    def all_owned() -> bool:
        owned = [partition for member in group for partition in member.owned]
        return len(owned) == len(set(owned)) == partitions and all(
            len(member.owned) <= -(-partitions // len(group)) for member in group
        )

    group = [Member(stub, round(1_000 * session_s), f"instance-{number}") for number in range(members)]
    result: dict[str, Any] = {"members": members, "partitions": partitions, "session_timeout_s": session_s}
    before = await revision()
    for member in group:
        member.start()
    result["all_joined_and_settled_s"] = round(await wait_until(all_owned), 2)
    result["writes_to_join"] = await revision() - before

    late = Member(stub, round(1_000 * session_s))
    group.append(late)
    late.start()
    result["one_more_joined_and_settled_s"] = round(await wait_until(lambda: bool(late.owned) and all_owned()), 3)

    pid = running.coordinators[0].pid
    assert pid is not None
    address = running.coordinators[0].address
    result["heartbeat"] = await heartbeats(address, pid, group, seconds)

    before, started = await revision(), time.monotonic()
    took = await spread(lambda member: member.commit(), group, seconds)
    elapsed = time.monotonic() - started
    result["commit"] = figures(took)
    result["commits_per_s"] = round(partitions * seconds / elapsed)
    result["etcd_writes_per_s"] = round((await revision() - before) / elapsed)
    result["heartbeat_during_commits"] = await heartbeats(
        address, pid, group, seconds, lambda: spread(Member.commit, group, seconds)
    )
    result["heartbeat_during_joins_and_departures"] = await heartbeats(
        address, pid, list(group), seconds, lambda: come_and_go(lambda: Member(stub, round(1_000 * session_s)), seconds)
    )
    await wait_until(all_owned)

    waits = []
    for _ in range(3):
        dead = group.pop()
        await dead.die()
        waits.append(round(await wait_until(all_owned), 2))
    result["replaced_after_death_s"] = waits
    waits = []
    for _ in range(3):
        gone = group.pop()
        started = time.monotonic()
        await gone.leave()
        await wait_until(all_owned)
        waits.append(round(time.monotonic() - started, 3))
    result["replaced_after_leaving_s"] = waits

    moved = await restart_all(group[:10], group, stub, session_s)
    result["moved_by_ten_static_restarts"] = moved
    for member in group:
        await member.die()
    print(json.dumps(result, indent=2))
    await metastore.close()
    for channel in channels:
        await channel.close()


async def restart_all(some: list[Member], group: list[Member], stub: Any, session_s: float) -> int:
    """Restart instances one after the other; return the number of partitions of other members that moved."""
    moved = 0
    for old in some:
        others = {member: dict(member.owned) for member in group if member is not old}
        await old.die()
        new = Member(stub, round(1_000 * session_s), old.instance_id)
        group[group.index(old)] = new
        new.start()
        await wait_until(lambda new=new: bool(new.owned))  # type: ignore[misc]
        moved += sum(len(owned.keys() - member.owned.keys()) for member, owned in others.items())
    return moved


@app.command()
def main(
    members: Annotated[int, typer.Option(min=2, help="Number of members; all join at once.")] = 100,
    partitions: Annotated[int, typer.Option(min=10, help="Number of partitions, in ten topics.")] = 1_000,
    session: Annotated[float, typer.Option(min=1, help="Session timeout in seconds.")] = 6.0,
    seconds: Annotated[int, typer.Option(min=1, help="Duration of each phase (heartbeats, commits) in seconds.")] = 10,
) -> None:
    """Measure joins, heartbeats, commits, deaths, departures and restarts of instances."""
    with LocalCluster(LocalClusterSpec(brokers=1)) as running:
        with headrace.Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            for number in range(TOPICS):
                admin.create_topic(f"bench-{number}", partitions=partitions // TOPICS, replication_factor=1)
        total = partitions // TOPICS * TOPICS
        asyncio.run(measure(running, members=members, partitions=total, session_s=session, seconds=seconds))


if __name__ == "__main__":
    app()
