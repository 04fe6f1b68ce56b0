"""Quotas: a user gets its rate, whatever it asks for, by answers that are held."""

import asyncio

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import ThrottledError
from headrace_server.identity.quotas import EVERY_USER, MAX_DEBT_SECONDS, Payer, Quotas, Use

ADA, BOB = Payer("ada"), Payer("bob")


class Source:
    def __init__(self, **quotas):
        self.quotas = quotas

    def quota_of(self, user):
        return self.quotas.get(user) or self.quotas.get("every") or auth_pb2.Quota()


class Ledger:
    """Quotas by a clock that moves by what is waited for."""

    def __init__(self, monkeypatch, **quotas):
        self.now = 100.0
        self.held = []
        self.quotas = Quotas(Source(**quotas), lambda *each: self.held.append(each), lambda: self.now)

        async def sleep(seconds):
            self.now += seconds

        monkeypatch.setattr(asyncio, "sleep", sleep)


async def test_a_user_gets_its_rate_within_a_tenth(monkeypatch):
    """For a minute of requests of 300 kB, each as soon as the one before is answered."""
    ledger = Ledger(monkeypatch, ada=auth_pb2.Quota(produce_bytes_per_second=1_000_000))
    started, sent = ledger.now, 0
    while ledger.now - started < 60:
        ledger.quotas.charge(ADA, Use.PRODUCE, 300_000)
        sent += 300_000
        await ledger.quotas.hold(ADA, Use.PRODUCE)
    rate = sent / (ledger.now - started)
    assert rate == pytest.approx(1_000_000, rel=0.1)
    assert ledger.held[-1][:2] == ("ada", "produce_bytes_per_second")


async def test_others_and_other_uses_are_not_held(monkeypatch):
    ledger = Ledger(monkeypatch, ada=auth_pb2.Quota(produce_bytes_per_second=1))
    ledger.quotas.charge(ADA, Use.PRODUCE, 20)
    assert await ledger.quotas.hold(BOB, Use.PRODUCE) == 0
    assert await ledger.quotas.hold(ADA, Use.FETCH) == 0
    ledger.quotas.charge(ADA, Use.FETCH, 10**9)
    assert await ledger.quotas.hold(ADA, Use.FETCH) == 0
    assert await ledger.quotas.hold(ADA, Use.PRODUCE, 2.0) == 2_000


def test_a_user_that_was_idle_may_use_a_second_at_once(monkeypatch):
    ledger = Ledger(monkeypatch, every=auth_pb2.Quota(user=EVERY_USER, requests_per_second=10))
    ledger.quotas.charge(Payer("", "10.0.0.1"), Use.REQUEST, 10)
    assert ledger.quotas.debt_seconds(Payer("", "10.0.0.1"), Use.REQUEST) == 0
    ledger.quotas.charge(Payer("", "10.0.0.1"), Use.REQUEST, 5)
    assert ledger.quotas.debt_seconds(Payer("", "10.0.0.1"), Use.REQUEST) == pytest.approx(0.5)


def test_a_debt_that_cannot_be_held_is_refused_with_the_time_to_wait(monkeypatch):
    ledger = Ledger(monkeypatch, ada=auth_pb2.Quota(fetch_bytes_per_second=1))
    ledger.quotas.charge(ADA, Use.FETCH, round(MAX_DEBT_SECONDS + 1))
    ledger.quotas.check(ADA, Use.FETCH)
    ledger.quotas.charge(ADA, Use.FETCH, 1)
    with pytest.raises(ThrottledError, match="ada has used its fetch bytes per second for the next 31 s") as caught:
        ledger.quotas.check(ADA, Use.FETCH)
    assert caught.value.retry_after_ms == 31_000


def test_changes_have_a_rate_a_minute_and_a_minute_at_once(monkeypatch):
    ledger = Ledger(monkeypatch, ada=auth_pb2.Quota(changes_per_minute=60))
    ledger.quotas.charge(ADA, Use.CHANGE, 60)
    assert ledger.quotas.debt_seconds(ADA, Use.CHANGE) == 0
    ledger.quotas.charge(ADA, Use.CHANGE, 3)
    assert ledger.quotas.debt_seconds(ADA, Use.CHANGE) == pytest.approx(3)
    ledger.now += 60
    assert ledger.quotas.debt_seconds(ADA, Use.CHANGE) == 0


def test_connections_are_counted_until_they_end(monkeypatch):
    ledger = Ledger(monkeypatch, ada=auth_pb2.Quota(connections=2))
    for _ in range(2):
        ledger.quotas.connect(ADA)
    with pytest.raises(ThrottledError, match="ada has 2 connections, its quota"):
        ledger.quotas.connect(ADA)
    ledger.quotas.connect(BOB)
    ledger.quotas.disconnect(ADA)
    ledger.quotas.connect(ADA)
