"""Errors of the client cross processes, as those of a pool of workers do."""

import copy
import pickle

import pytest
from headrace import TopicPartition
from headrace.client.base import errors
from headrace.wire.errors import HeadraceError, TimedOutError

P0 = TopicPartition("clicks", 0)
ERRORS = (
    errors.ConfigError("acks is 7", action="Set 0, 1 or all."),
    errors.SerializationError("no string"),
    errors.ClosedError("Producer"),
    errors.ForkedError("Producer"),
    errors.BufferFullError(1_000, 60_000),
    errors.DeliveryError([(P0, 3, TimedOutError("too late"))], failed_records=3, pending_records=2),
    errors.NoBrokersAvailableError({"b:1": "connection refused"}),
    errors.HandlerError(P0, 7, 3, "ValueError: no"),
    errors.HandlerTimeoutError(1_000),
    errors.ProcessEndedError(3),
    errors.LogTruncationError(P0, 9, 7, 2),
    errors.TopicRecreatedError(P0, 9, b"a" * 16, b"b" * 16),
    errors.WakeupError(),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling_and_copying(error: HeadraceError) -> None:
    """Whatever its constructor takes: type, text and attributes."""
    error.request_id = "r1"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(twin), str(twin), twin.args) == (type(error), str(error), error.args)
        assert {name: str(value) for name, value in vars(twin).items()} == {
            name: str(value) for name, value in vars(error).items()
        }


def test_every_error_of_the_client_is_pickled_here() -> None:
    """So that a new one is."""
    found = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, HeadraceError)}
    here = {each for each in found if each.__module__ == errors.__name__}
    assert here == {type(error) for error in ERRORS}
