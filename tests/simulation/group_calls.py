"""Calls of members at coordinators: requests and answers on the simulated network, deadlines, cancellation.

A request may come late, after its caller has given up and asked elsewhere, or twice; an answer may not come (H62-H64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from headrace.client.base.operations import Call
from headrace.wire.errors import HeadraceError, UnknownMemberError

from tests.fakes.failed_call import FailedCallError
from tests.simulation.world import Event, Process

if TYPE_CHECKING:
    from tests.simulation.group_cluster import GroupCluster

Done = Callable[[Any, BaseException | None], object]


class Calls:
    """All calls under way."""

    def __init__(self, cluster: GroupCluster) -> None:
        self.cluster = cluster
        self.chance = cluster.world.chance("calls")
        self.late_rate = 0.0
        self.under_way: dict[MemberCall, None] = {}

    def process_died(self, server: Process) -> None:
        """Tell most of those whose calls a process had."""
        for call in [call for call in self.under_way if call.server is server]:
            if self.chance.random() < 0.7:
                call.refuse("the connection was reset")


class MemberCall:
    """One call. `done` is called once, in the caller's process, with the answer or the error."""

    def __init__(self, cluster: GroupCluster, client: Process, call: Call, done: Done) -> None:
        self._cluster = cluster
        self._client = client
        self._call = call
        self._done: Done | None = done
        self._cancel_at_server: list[Callable[[], object]] = []
        world, calls = cluster.world, cluster.calls
        self._timeout: Event = world.after(
            max(1, round(call.timeout * 1000)),
            client,
            "",
            lambda: self._finish(None, FailedCallError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")),
        )
        node = cluster.coordinator_at(call.address)
        coordinator = None if node is None else node.coordinator
        self.server: Process | None = None if coordinator is None else coordinator.process
        calls.under_way[self] = None
        if node is None or coordinator is None:
            self.refuse("failed to connect to all addresses")
            return
        self._coordinator = coordinator

        def arrive() -> None:
            if call.method == "CommitOffsets":
                cluster.checks.commit_arrived(self, call.request)
            self._cancel_at_server.append(coordinator.serve(call.method, call.request, call.timeout, self._reply))

        if call.method == "LeaveGroup":
            cluster.checks.left[call.request.member_id] = None
        what = call.method if call.method != "GetMetadata" else ""
        if calls.late_rate and calls.chance.random() < calls.late_rate:
            world.count("requests that came late")
            world.after(500 + calls.chance.randrange(15_000), coordinator.process, f"{what} (late)", arrive)
        else:
            cluster.network.send(client.name, coordinator.process, what, arrive)

    def refuse(self, why: str) -> None:
        """Let the caller hear that its connection is gone."""
        error = FailedCallError(grpc.StatusCode.UNAVAILABLE, why)
        self._cluster.world.after(self._cluster.network.delay_ms(), self._client, "", lambda: self._finish(None, error))

    def cancel(self) -> None:
        """Cancel it; the server may learn of that."""
        self._done = None
        self._end()

    def _reply(self, answer: Any, error: HeadraceError | None) -> None:
        assert self.server is not None
        if self._call.method == "CommitOffsets":
            self._cluster.checks.commit_answered(self, answer)
        self._cluster.network.send(self.server.name, self._client, "", lambda: self._finish(answer, error), once=True)

    def _finish(self, answer: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        if error is None or isinstance(error, HeadraceError):
            self._timeout.cancel()
            self._cluster.calls.under_way.pop(self, None)
        else:
            self._end()
        if error is None and self._call.method == "CommitOffsets":
            self._cluster.checks.told_stored(self._call.request, answer)
        if isinstance(error, UnknownMemberError) and self._call.method == "Heartbeat":
            self._cluster.checks.told_unknown(self._call.request)
        done(answer, error)

    def _end(self) -> None:
        self._timeout.cancel()
        self._cluster.calls.under_way.pop(self, None)
        if self.server is not None:

            def cancel() -> None:
                for each in self._cancel_at_server:
                    each()

            self._cluster.network.send(self._client.name, self.server, "", cancel, once=True)
