"""Streams of replica fetches between brokers; the counterpart of `leader_link` and `follower_stream` of the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.wire.errors import HeadraceError, NotLeaderError, Outcome
from headrace_broker.core.replica_fetch import FetchAnswer, FetchRequest
from headrace_server.partition_state import Replica

from tests.simulation.host import Host
from tests.simulation.world import Process

if TYPE_CHECKING:
    from tests.simulation.broker import Broker


class ReplicaLink:
    """One `ReplicaFetch` stream from a follower's broker to a leader's."""

    def __init__(self, follower: Broker, leader: Broker) -> None:
        self.follower = follower
        self.leader = leader
        self.identity = Replica(follower.broker_id, follower.broker_epoch)
        self.heard_by_follower_ms = self.heard_by_leader_ms = follower.cluster.world.now_ms
        self._stream = follower.cluster.network.open_stream(follower.process, leader.process, self._broke)
        leader.peers.append(self)

    def fetch(self, host: Host, request: FetchRequest, *, found_damage: bool) -> None:
        """Send a follower's fetch."""
        partition, follower = host.partition, self.follower
        self._stream.send(
            follower.process,
            f"{host.name} fetch {request.token} of b{follower.broker_id} at {request.offset}/{request.durable_offset} "
            f"last epoch {request.last_epoch} in epoch {request.leader_epoch}",
            lambda: self._arrive(partition, request, found_damage),
        )

    def _arrive(self, partition: int, request: FetchRequest, found_damage: bool) -> None:
        self.heard_by_leader_ms = self.leader.cluster.world.now_ms
        host = self.leader.hosts.get(partition)
        if host is None:
            error = NotLeaderError("no replica here", outcome=Outcome.NOT_APPLIED)
            self._send(partition, request, error, "no replica here")
        else:
            host.take_fetch(self, request, found_damage=found_damage)

    def answer(self, host: Host, request: FetchRequest, answer: FetchAnswer | HeadraceError) -> None:
        """Send the leader's answer."""
        if isinstance(answer, HeadraceError):
            said = type(answer).__name__
        elif answer.verdict is not None:
            said = str(answer.verdict)
        else:
            said = f"{len(answer.batches)} bytes, high watermark {answer.high_watermark}"
        self._send(host.partition, request, answer, said)

    def _send(self, partition: int, request: FetchRequest, answer: FetchAnswer | HeadraceError, said: str) -> None:
        self._stream.send(
            self.leader.process,
            f"p{partition} answer {request.token} of b{self.leader.broker_id}: {said}",
            lambda: self._return(partition, request, answer),
        )

    def _return(self, partition: int, request: FetchRequest, answer: FetchAnswer | HeadraceError) -> None:
        self.heard_by_follower_ms = self.follower.cluster.world.now_ms
        host = self.follower.hosts.get(partition)
        if host is not None:
            host.take_answer(answer, request.token, request.leader_epoch)

    def give_signs_of_life(self, side: Broker) -> None:
        """Send an empty message."""
        self._stream.send(side.process, "", lambda: self._hear(side))

    def _hear(self, sender: Broker) -> None:
        now_ms = self.follower.cluster.world.now_ms
        if sender is self.follower:
            self.heard_by_leader_ms = now_ms
        else:
            self.heard_by_follower_ms = now_ms

    def _broke(self, side: Process) -> None:
        if side is self.follower.process:
            self.follower.link_broke(self)
        else:
            self.leader.peer_broke(self)

    def close(self, side: Process) -> None:
        """End it from one side."""
        self._stream.close(side)
