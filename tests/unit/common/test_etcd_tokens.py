"""Logins at etcd that calls share: one a member, for no longer than a call may last."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from headrace_server.metastore.etcd_login import EtcdLogin, EtcdRefusedError, NotAuthenticatedError

SECONDS = 5
CALLS = 20


class Member:
    """Auth service of a member that answers logins once `answers` is set, by `error` if it has one."""

    def __init__(self, token):
        self.token, self.logins, self.error = token, 0, None
        self.called, self.answers = asyncio.Event(), asyncio.Event()

    async def Authenticate(self, request, timeout):
        self.logins += 1
        self.called.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(token=self.token)


async def answer_with_token(request, timeout, metadata):
    return dict(metadata).get("token")


def call(login, member, timeout_s=60.0):
    return asyncio.create_task(login.send(member, answer_with_token, None, try_s=1.0, timeout_s=timeout_s))


@pytest.fixture
def login(tmp_path):
    (tmp_path / "password").write_text("secret")
    return EtcdLogin("headrace", str(tmp_path / "password"))


async def test_a_member_that_hangs_delays_no_login_at_another_one(login):
    """Calls that already wait for it may have a minute left."""
    hangs, answers = Member("a"), Member("b")
    answers.answers.set()
    waiting = [call(login, hangs) for _ in range(CALLS)]
    await hangs.called.wait()
    async with asyncio.timeout(SECONDS):
        assert await call(login, answers) == "b"
        assert await call(login, hangs) == "b"
    assert not any(each.done() for each in waiting)
    hangs.answers.set()
    assert await asyncio.gather(*waiting) == ["a"] * CALLS


async def test_calls_to_one_member_share_a_login_and_its_failure(login):
    """Not one after the other, each for its whole timeout."""
    member = Member("a")
    member.error = AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, Metadata(), Metadata(), "no leader")
    waiting = [call(login, member) for _ in range(CALLS)]
    await member.called.wait()
    member.answers.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert {str(error) for error in failed} == {"DEADLINE_EXCEEDED no leader"}
    assert member.logins == 1
    member.error = None
    assert await call(login, member) == "a"


async def test_a_call_waits_for_a_login_no_longer_than_its_timeout(login):
    """Neither its end nor a cancellation of the call that began the login costs the others theirs."""
    member = Member("a")
    first = call(login, member)
    await member.called.wait()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(NotAuthenticatedError, match=r"no login within 0\.01 s"):
            await call(login, member, timeout_s=0.01)
    last = call(login, member)
    first.cancel()
    member.answers.set()
    assert await last == "a"
    assert member.logins == 1


async def test_a_password_that_cannot_be_read_is_reported_to_every_call(login, tmp_path):
    (tmp_path / "password").unlink()
    failed = await asyncio.gather(*(call(login, Member("a")) for _ in range(2)), return_exceptions=True)
    assert {type(error) for error in failed} == {EtcdRefusedError}
