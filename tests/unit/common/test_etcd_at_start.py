"""The first look of a service at etcd: which release it is, and what happens while there is none."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from headrace.wire.errors import InvalidConfigError, MetastoreUnavailableError
from headrace_server import service_process
from headrace_server.keys import meta_key
from headrace_server.lifecycle import StopRequest
from headrace_server.metastore.etcd_login import EtcdRefusedError
from headrace_server.metastore.etcd_releases import check_etcd, is_production_etcd, reports_future_watches
from headrace_server.metastore.view import PrefixView
from headrace_server.service_process import ServiceProcess

from tests.fakes.memory_metastore import MemoryMetastore

SETTINGS = SimpleNamespace(
    cluster="c", etcd_endpoints=("127.0.0.1:1",), posture="", insecure=False, client_listens=("127.0.0.1:0",)
)


async def nothing(_identity):
    return None


@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("3.5.1", False),
        ("3.5.27", False),
        ("3.5.28", True),
        ("3.6.8", False),
        ("3.6.9", True),
        ("3.7.0", True),
        ("4.0.0", True),
        ("3.4.40", False),
        ("unknown", False),
    ],
)
def test_which_etcd_is_fit_for_production(version, fit):
    """At least 3.5.28 or 3.6.9 (PROTOCOL, decisions taken)."""
    assert is_production_etcd(version) is fit


@pytest.mark.parametrize(
    ("version", "reports"),
    [("3.5.1", True), ("3.5.7", True), ("3.5.8", False), ("3.6.9", False), ("", False), ("unknown", False)],
)
def test_which_etcd_reports_the_progress_of_a_watch_of_the_future(version, reports):
    """Those before 3.5.8; a release that tells its version to root only is a later one."""
    assert reports_future_watches(version) is reports


@pytest.mark.parametrize("version", ["3.4.40", "2.3.8", "3.4.0-rc.1"])
def test_an_etcd_that_is_too_old_is_refused(version):
    """Before anything is served, in one sentence that says what to do; a newer or unknown one is taken."""
    with pytest.raises(InvalidConfigError, match=f"release {version}, and headrace needs 3.5 or later. Upgrade etcd"):
        check_etcd(version)
    for taken in ("3.5.0", "3.6.9", "4.0.0", "unknown"):
        check_etcd(taken)


async def test_a_service_does_not_start_on_an_etcd_that_is_too_old():
    """Its first look at etcd ends it, before anything is written; waiting would not help."""

    class Old(MemoryMetastore):
        async def status(self):
            return replace(await super().status(), version="3.4.27")

    metastore = Old()
    process = ServiceProcess("broker-1", SETTINGS, None, None, None, metastore)
    with pytest.raises(InvalidConfigError, match=r"3\.4\.27"):
        await process.reach_etcd(nothing, StopRequest())
    assert (await metastore.get(meta_key("c"))).key_value is None


async def test_a_service_does_not_start_on_an_etcd_that_refuses_it():
    """A wrong password or a missing right does not go away by waiting: the reason ends the start."""

    class Refusing(MemoryMetastore):
        async def status(self):
            raise EtcdRefusedError("etcd does not accept the password", action="Name the right file.")

    process = ServiceProcess("broker-1", SETTINGS, None, None, None, Refusing())
    with pytest.raises(InvalidConfigError, match=r"does not accept the password\. Name the right file"):
        await process.reach_etcd(nothing, StopRequest())


async def test_a_service_waits_for_etcd_until_it_is_stopped(monkeypatch):
    """It asks again; a stop ends the wait without a result."""
    monkeypatch.setattr(service_process, "RETRY_SECONDS", 0)
    stop = StopRequest()
    tries = []

    class Away(MemoryMetastore):
        async def status(self):
            tries.append(1)
            if len(tries) == 3 and not comes:
                stop.set("SIGTERM")
            if len(tries) < 3 or not comes:
                raise MetastoreUnavailableError("no answer")
            return await super().status()

    for comes in (True, False):
        tries.clear()
        process = ServiceProcess("broker-1", SETTINGS, None, None, None, Away())
        reached = await process.reach_etcd(nothing, stop)
        assert (reached is None) == stop.is_set() == (not comes)


@pytest.mark.parametrize("answers", [False, True])
async def test_a_stop_while_the_metadata_is_read_leaves_views_that_are_not_loaded(monkeypatch, answers):
    """The caller learns of it. A read to which etcd does not respond is not waited for either."""
    monkeypatch.setattr(service_process, "RETRY_SECONDS", 0)
    stop = StopRequest()

    class Away(MemoryMetastore):
        async def range(self, *_, **__):
            stop.set("SIGTERM")
            if not answers:
                await asyncio.Event().wait()
            raise MetastoreUnavailableError("no answer")

    metastore = Away()
    process = ServiceProcess("broker-1", SETTINGS, None, None, None, metastore)
    source = PrefixView(metastore, "/", process.clock)
    async with asyncio.timeout(20):
        assert not await process.load(source, stop=stop)
    assert source.revision == 0


async def test_views_are_read_until_etcd_responds(monkeypatch):
    monkeypatch.setattr(service_process, "RETRY_SECONDS", 0)
    failures = [MetastoreUnavailableError("no answer")] * 2

    class Late(MemoryMetastore):
        async def range(self, *arguments, **options):
            if failures:
                raise failures.pop()
            return await super().range(*arguments, **options)

    metastore = Late()
    process = ServiceProcess("broker-1", SETTINGS, None, None, None, metastore)
    source = PrefixView(metastore, "/", process.clock)
    assert await process.load(source, stop=StopRequest())
    assert source.revision > 0
