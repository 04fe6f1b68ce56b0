"""The table of errors is complete and survives the wire."""

import pickle

import grpc
import pytest
from headrace.v1 import errors_pb2
from headrace.wire import errors
from headrace.wire.errors import (
    ERRORS,
    GRPC_STATUS,
    STATUS_DETAILS_KEY,
    BatchTooLargeError,
    CorruptBatchError,
    ErrorCode,
    FencedProducerError,
    HeadraceError,
    InternalError,
    InvalidTopicNameError,
    LeaderHint,
    NotLeaderError,
    Outcome,
    TimedOutError,
    TransportError,
    from_detail,
    from_rpc_error,
    to_detail,
    to_status_bytes,
)
from headrace.wire.topic_names import check_new_topic_name, check_topic_name


class FailedCall(grpc.RpcError):
    """A call as grpc raises it: status, details, trailers."""

    def __init__(self, status: grpc.StatusCode, trailers: tuple = (), details: str = "") -> None:
        self._said = status, trailers, details

    def code(self) -> grpc.StatusCode:
        return self._said[0]

    def trailing_metadata(self) -> tuple:
        return self._said[1]

    def details(self) -> str:
        return self._said[2]


def test_enums_repeat_the_proto() -> None:
    """Every code and outcome of errors.proto is there under its name and number, and none besides."""
    assert {f"ERROR_CODE_{code.name}": code.value for code in ErrorCode} == dict(errors_pb2.ErrorCode.items())
    assert {f"OUTCOME_{outcome.name}": outcome.value for outcome in Outcome} == dict(errors_pb2.Outcome.items())


def test_every_code_has_a_row() -> None:
    """Each code has an exception of its own that names it, a gRPC status, an outcome and an action."""
    assert set(ERRORS) == set(ErrorCode) == set(GRPC_STATUS)
    for code, row in ERRORS.items():
        assert row.exception.default_code == code
        assert GRPC_STATUS[code].name == row.grpc_status
        assert row.outcome in {Outcome.NOT_APPLIED, Outcome.UNKNOWN}
        assert bool(row.action) == (code != ErrorCode.UNSPECIFIED)
    assert len({row.exception for row in ERRORS.values()}) == len(ERRORS)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code])
def test_round_trip_through_an_answer_and_a_trailer(code: ErrorCode) -> None:
    """All that an error says arrives, in an answer and in a failed call."""
    error = ERRORS[code].exception(
        "it broke", outcome=Outcome.APPLIED, retriable=True, leader=LeaderHint(3, 9, "h:1"), retry_after_ms=20
    )
    told = from_detail(to_detail(ERRORS[code].exception("x", action="Turn it off and on.")))
    assert told.action == "Turn it off and on."
    failed = FailedCall(GRPC_STATUS[code], (("x", "y"), (STATUS_DETAILS_KEY, to_status_bytes(error))))
    for back in (from_detail(to_detail(error)), from_rpc_error(failed), pickle.loads(pickle.dumps(error))):
        assert type(back) is type(error)
        assert vars(back) == vars(error)
    assert str(error) == f"it broke. {ERRORS[code].action}"


def test_unknown_code_of_a_newer_server() -> None:
    """A code of the future keeps what the server said about retrying."""
    detail = errors_pb2.ErrorDetail(code=4711, retriable=True, message="new", action="Upgrade.")  # type: ignore[arg-type]
    error = from_detail(detail)
    assert isinstance(error, InternalError)
    assert (error.retriable, error.outcome, error.action) == (True, Outcome.UNKNOWN, "Upgrade.")
    assert "4711" in str(error)


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_untyped_failures_have_an_unknown_outcome(status: grpc.StatusCode) -> None:
    """H52: the outcome of a call that broke off is not known."""
    for trailers in ((), ((STATUS_DETAILS_KEY, b"\xff\xff"),)):
        assert from_rpc_error(FailedCall(status, trailers, "gone")).outcome == Outcome.UNKNOWN


def test_untyped_failures_by_status() -> None:
    """What a caller treats apart is told apart."""
    assert isinstance(from_rpc_error(FailedCall(grpc.StatusCode.DEADLINE_EXCEEDED)), TimedOutError)
    unavailable = from_rpc_error(FailedCall(grpc.StatusCode.UNAVAILABLE))
    assert isinstance(unavailable, TransportError)
    assert unavailable.retriable
    assert not from_rpc_error(FailedCall(grpc.StatusCode.CANCELLED)).retriable
    too_large = FailedCall(grpc.StatusCode.RESOURCE_EXHAUSTED, details="Sent message larger than max (9 vs. 4)")
    assert isinstance(from_rpc_error(too_large), BatchTooLargeError)
    assert isinstance(from_rpc_error(grpc.RpcError()), InternalError)


def test_defaults_come_from_the_table() -> None:
    """A raiser names only the class and the message."""
    assert NotLeaderError("x").retriable
    assert FencedProducerError("x").fatal
    assert CorruptBatchError("x", next_offset=9).next_offset == 9
    assert str(HeadraceError("only this")) == "only this"
    assert to_detail(TransportError("x")).code == ErrorCode.INTERNAL
    with pytest.raises(AttributeError):
        _ = errors.NO_SUCH_NAME


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_good_topic_names(name: str) -> None:
    """The rule of Apache Kafka."""
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "٣"])
def test_bad_topic_names(name: str) -> None:
    """Each says what is wrong and what is allowed."""
    with pytest.raises(InvalidTopicNameError, match="Use 1 to 249"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["__audit", "__", ".hidden", "...", "-f", "--help"])
def test_reserved_topic_names_are_refused_for_new_topics_only(name: str) -> None:
    """A client may read a topic of such a name, but not create one: an internal topic cannot be taken beforehand."""
    check_topic_name(name)
    with pytest.raises(InvalidTopicNameError, match="single '_'"):
        check_new_topic_name(name)
    check_new_topic_name("_" + name.strip("_.-") + "x")
