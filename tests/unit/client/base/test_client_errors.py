"""Errors of the client cross processes, as those of a pool of workers do."""

import ast
import copy
import pickle
from pathlib import Path

import headrace
import pytest
from headrace import TopicPartition
from headrace.client.base import errors
from headrace.wire import errors as wire_errors
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


def test_every_error_is_a_name_of_the_package() -> None:
    """Users catch `headrace.TopicAlreadyExistsError`, not a class of an inner module."""
    typed = {row.exception.__name__ for row in wire_errors.ERRORS.values()} | {type(error).__name__ for error in ERRORS}
    assert typed <= set(headrace.__all__)
    assert headrace.TopicAlreadyExistsError is wire_errors.TopicAlreadyExistsError


def test_type_checkers_know_the_public_names_and_no_others() -> None:
    """They see each name's import, and no look-up of any name, which would hide a misspelt one."""
    tree = ast.parse(Path(headrace.__file__).read_text("utf-8"))
    imports, lookup = (node for node in tree.body if isinstance(node, ast.If))
    seen = {name.asname for node in imports.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == set(headrace.__all__) - {"__version__"}
    assert ast.unparse(lookup.test) == "not TYPE_CHECKING"
    assert [node.name for node in lookup.body if isinstance(node, ast.FunctionDef)] == ["__getattr__"]
    assert "__getattr__" not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
