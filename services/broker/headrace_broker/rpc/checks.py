"""Checks of fields that several requests have."""

from __future__ import annotations

from headrace.v1 import broker_pb2
from headrace.wire.errors import InvalidRequestError


def seconds_of(timeout_ms: int) -> float:
    """Return a request's timeout in seconds.

    Raises:
        InvalidRequestError: If it is not positive.
    """
    if timeout_ms <= 0:
        raise InvalidRequestError("timeout_ms must be positive", action="Set timeout_ms, for example to 30000.")
    return timeout_ms / 1000


def identity_of(producer: broker_pb2.ProducerIdentity | None) -> tuple[int, int, int]:
    """Return producer id, epoch and first sequence of a batch that the broker encodes; -1 for `None`.

    Raises:
        InvalidRequestError: If one is negative.
    """
    if producer is None:
        return -1, -1, -1
    identity = (producer.producer_id, producer.producer_epoch, producer.base_sequence)
    if min(identity) < 0:
        raise InvalidRequestError("producer_id, producer_epoch and base_sequence must not be negative")
    return identity
