"""Calls about brokers: conversion between messages and the broker store.

Used by `cluster_service`; belongs to the event loop.
"""

from __future__ import annotations

import structlog
from headrace.v1 import cluster_pb2
from headrace.wire.errors import HeadraceError, InvalidRequestError
from headrace_server.metadata_view import ClusterView

from headrace_coordinator.rpc.answers import Answers
from headrace_coordinator.runtime.broker_store import BrokerStore

log = structlog.get_logger(__name__)


class BrokerRequests:
    """Implementation of the calls about brokers."""

    def __init__(self, store: BrokerStore, view: ClusterView, answers: Answers) -> None:
        self._store = store
        self._view = view
        self._answers = answers

    async def drain(
        self, request: cluster_pb2.DrainBrokerRequest, seconds_left: float
    ) -> cluster_pb2.DrainBrokerResponse:
        """Drain a broker or end its drain; the controller moves its leaders."""
        if request.broker_id < 0:
            raise InvalidRequestError(f"broker_id = {request.broker_id} is negative")
        deadline = self._answers.deadline(0, seconds_left)
        revision, changed = await self._store.drain(request.broker_id, request.drain, deadline)
        await self._answers.see(revision, deadline)
        if changed:
            log.info("broker_drained", client_id=request.client_id, broker_id=request.broker_id, drain=request.drain)
        return cluster_pb2.DrainBrokerResponse(leaders=self._leaders(request.broker_id), unchanged=not changed)

    async def drained(self, seconds_left: float) -> cluster_pb2.DrainedBrokers:
        """Return the drained brokers as etcd has them, or its error."""
        response = cluster_pb2.DrainedBrokers()
        try:
            response.broker_ids.extend(await self._store.drained(self._answers.deadline(0, seconds_left)))
        except HeadraceError as error:
            self._answers.put_error(response, error)
        return response

    def _leaders(self, broker_id: int) -> int:
        return sum(
            partition.state.leader_id == broker_id
            for topic in self._view.topics.values()
            for partition in self._view.partitions(topic.topic_id)
        )
