"""One name for an operation: over all its calls, in its errors, in another one for the next."""

import asyncio
import os
from concurrent import futures

import grpc
import pytest
from headrace.client.base.operations import aexecute, aexecute_loop, execute
from headrace.client.base.request_ids import metadata_of, new_request_id, operation_metadata, request_id_scope
from headrace.wire.call_tries import CALL_TRY_KEY, CallTry
from headrace.wire.errors import REQUEST_ID_KEY, HeadraceError, InvalidTopicNameError


def names(count):
    """Yield `count` steps that request the name."""
    found = []
    for _ in range(count):
        found.append((yield "name"))
    return found


def test_all_calls_of_an_operation_have_one_name_and_the_next_has_another():
    """Blocking and asyncio; a loop gives each call its own."""

    def run_step(_step):
        ((key, name),) = operation_metadata()
        assert key == REQUEST_ID_KEY
        return name

    async def arun_step(step):
        return run_step(step)

    first, second = execute(names(3), run_step), asyncio.run(aexecute(names(3), arun_step))
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert len(set(asyncio.run(aexecute_loop(names(3), arun_step)))) == 3


def test_a_call_that_may_be_repeated_names_its_try():
    call_try = CallTry.first()
    assert operation_metadata("token", call_try=call_try)[2:] == ((CALL_TRY_KEY, str(call_try)),)


def test_an_operation_within_another_is_a_part_of_it():
    """A consumer's poll that looks up metadata."""
    with request_id_scope():
        outer = operation_metadata()
        with request_id_scope():
            assert operation_metadata() == outer
    assert operation_metadata() != outer


def test_an_error_says_the_name_once_a_call_has_left():
    """What is refused before anything was sent has none; the name of an inner error stays."""
    with pytest.raises(HeadraceError) as early, request_id_scope():
        raise InvalidTopicNameError("bad")
    assert early.value.request_id == ""
    assert "request" not in str(early.value)
    with pytest.raises(HeadraceError) as late, request_id_scope():
        operation_metadata()
        raise InvalidTopicNameError("bad")
    assert late.value.request_id
    assert str(late.value).endswith(f"[request {late.value.request_id}]")


def test_a_fork_does_not_continue_its_parents_names():
    """Names are a random part and a number; the child draws anew."""
    before = new_request_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    named = os.read(reading, 64).decode()
    os.close(reading)
    os.close(writing)
    assert named.partition("-")[0] != before.partition("-")[0]


def test_names_are_fit_for_metadata():
    """gRPC takes them as they are, and gives them to the server."""
    seen = []

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            seen.append(dict(handler_call_details.invocation_metadata).get(REQUEST_ID_KEY))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    name = new_request_id()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary("/x/Y")(b"", timeout=10, metadata=metadata_of(name))
    server.stop(0)
    assert seen == [name]
