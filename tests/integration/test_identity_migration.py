"""A running cluster is closed, and its signing keys are replaced, without a failed call of a program that works."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace import Admin, Consumer, Producer, UnauthenticatedError
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.identity.identity_view import SIGNS_AFTER_MS
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.keys import Keyspace
from headrace_server.metastore.api import Delete, Operation, Put
from headrace_server.metastore.etcd_login import EtcdLogin

from tests.integration.etcd_backups import command
from tests.integration.metastore import connected
from tests.integration.replicated import until
from tests.integration.test_identity import Secured, everyone_granted

TRANSPORTS = [pytest.param("native", marks=pytest.mark.native), "grpc"]
TOPIC = "orders"
OBSERVED = "_observed_refusals_total{"


class Program:
    """A thread that repeats a step until it is closed; the first error ends it, and closing raises it."""

    def __init__(self) -> None:
        self.steps = 0
        self.error: BaseException | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def works_on(self) -> None:
        """Wait until it has done more, by calls that began after this."""
        before = self.steps
        until(lambda: self.error is not None or self.steps >= before + 5, "the program works on")
        assert self.error is None


class Writer(Program):
    """Sends one record after the other, each acknowledged."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self._name = name
        self._producer = Producer(**settings)

    def step(self) -> None:
        value = f"{self._name} {self.steps}".encode()
        self._producer.send(TOPIC, value).result(timeout=30)
        self.sent.append(value)

    def close(self) -> None:
        super().close()
        self._producer.close()
        assert self._producer.stats().failed_records == 0


class Listener(Program):
    """A member of a group that commits what it reads."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        self._consumer = Consumer(TOPIC, group_id="mail", auto_offset_reset="earliest", **settings)

    def step(self) -> None:
        self.seen += [record.value for record in self._consumer.poll(timeout=0.2)]
        self._consumer.commit()

    def close(self) -> None:
        super().close()
        self._consumer.close()


@contextlib.contextmanager
def running(*programs: Program) -> Iterator[None]:
    """Start programs; close them in the end."""
    for program in programs:
        program.start()
    try:
        yield
    finally:
        for program in programs:
            program.close()


def observed(cluster: LocalCluster) -> dict[str, float]:
    """Return the counts of what would be refused, by the labels of the metric, of all servers together."""
    counts: dict[str, float] = {}
    for part in (*cluster.brokers, *cluster.coordinators):
        for name, value in part.metrics().items():
            _, found, labels = name.partition(OBSERVED)
            if found:
                counts[labels] = counts.get(labels, 0) + value
    return counts


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_open_cluster_is_closed_while_its_programs_work(transport: str, tmp_path: Path) -> None:
    """The guide's steps: observe, see in the metrics who has no identity, give credentials and grants, require them.

    Programs are replaced one by one, as in a rolling update. No call of any fails, and every record arrives.
    """
    key_file = tmp_path / "admin.key"
    settings = {"metrics_listen": "127.0.0.1:0"}
    spec = LocalClusterSpec(brokers=2, coordinators=2, broker_settings=settings, coordinator_settings=settings)
    with LocalCluster(spec) as cluster, contextlib.ExitStack() as ends:
        common = {"bootstrap_servers": cluster.bootstrap_servers, "transport": transport}
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic(TOPIC, partitions=2)
        old = Writer("old", **common), Listener(**common)
        with running(*old):
            options = cluster.coordinators[0].spec.settings
            made = command("headrace_coordinator", "bootstrap-admin", "--out", key_file, **options)
            assert made.returncode == 0, made.stderr
            for part in cluster.parts:
                part.spec = dataclasses.replace(part.spec, api_key_file=key_file)  # So that it may read their metrics.
            admin = ends.enter_context(Admin(bootstrap_servers=cluster.bootstrap_servers, api_key_file=str(key_file)))
            admin.set_posture("observe")
            until(lambda: {'method="Produce"', 'method="Heartbeat"'} <= methods(cluster, "anonymous"), "it is counted")
            assert 'method="Fetch"' in methods(cluster, "anonymous")
            new = (
                Writer("new", api_key=user(cluster, admin, "shop", ("writer", f"topic:{TOPIC}")), **common),
                Listener(
                    api_key=user(cluster, admin, "mail", ("reader", f"topic:{TOPIC}"), ("reader", "group:mail")),
                    **common,
                ),
            )
            ends.enter_context(running(*new))
            for program in (*old, *new):
                program.works_on()

        # The old programs have ended. What `required` would refuse is not counted any more.
        def is_quiet() -> bool:
            """Return whether nothing was counted in a round; the last waits of the old programs end in the first."""
            was = observed(cluster)
            for program in new:
                program.works_on()
            return observed(cluster) == was

        until(is_quiet, "what required would refuse is not counted any more")
        before = observed(cluster)
        assert not methods(cluster, "shop") | methods(cluster, "mail")
        admin.set_posture("required")
        until(lambda: is_refused(cluster.bootstrap_servers), "the cluster is closed")
        for program in new:
            program.works_on()
        sent = old[0].sent + new[0].sent
        until(lambda: set(sent) <= set(old[1].seen + new[1].seen), "every record arrives")
        assert not observed(cluster).keys() - before.keys()


def methods(cluster: LocalCluster, name: str) -> set[str]:
    """Return the labels of methods for which the metrics name a user."""
    return {
        label
        for labels in observed(cluster)
        if f'user="{name}"' in labels
        for label in labels.split(",")
        if label.startswith("method")
    }


def user(cluster: LocalCluster, admin: Admin, name: str, *grants: tuple[str, str]) -> str:
    """Create a user with grants that every server knows; return its API key."""
    admin.create_user(name)
    for role, resource in grants:
        admin.grant(name, role, resource)
    api_key = str(admin.create_api_key(name).secret)
    until(lambda: everyone_granted(cluster, api_key, len(grants)), "every server knows the user's grants")
    return api_key


def is_refused(servers: str) -> bool:
    try:
        with Admin(bootstrap_servers=servers) as admin:
            admin.list_topics()
    except UnauthenticatedError:
        return True
    return False


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_signing_keys_are_replaced_under_load(transport: str) -> None:
    """The next key signs, then the one before is removed at once, long before its sessions have ended: clients open new
    sessions, and no call fails.
    """
    spec = LocalClusterSpec(brokers=2, coordinators=2, identity=True)
    with LocalCluster(spec) as cluster:
        secured = Secured(cluster)
        secured.admin.create_topic(TOPIC, partitions=2)
        shop = secured.user("shop", ("writer", f"topic:{TOPIC}")) | {"transport": transport}
        mail = secured.user("mail", ("reader", f"topic:{TOPIC}"), ("reader", "group:mail")) | {"transport": transport}
        writer, listener = Writer("shop", **shop), Listener(**mail)
        with running(writer, listener):
            writer.works_on()
            before = asyncio.run(signing_keys(cluster))
            key_id = asyncio.run(add_signing_key(cluster))
            until(lambda: everyone_knows(cluster, secured.admin_key, key_id), "the new key signs")
            asyncio.run(write(cluster, *(Delete(KEYS.signing_key(old)) for old in before)))
            for program in (writer, listener):
                program.works_on()
            sent = set(writer.sent)  # The writer continues, and the listener may always be a record behind.
            until(lambda: sent <= set(listener.seen), "every record arrives")
        secured.close()


KEYS = Keyspace("headrace", 1)


def etcd_login(cluster: LocalCluster) -> EtcdLogin:
    """Return the user by which the cluster's services use etcd."""
    settings = cluster.coordinators[0].spec.settings
    return EtcdLogin(str(settings["etcd_user"]), str(settings["etcd_password_file"]))


async def write(cluster: LocalCluster, *operations: Operation) -> None:
    async with connected(cluster.etcd.endpoint, login=etcd_login(cluster)) as metastore:
        assert (await metastore.txn([], operations)).succeeded


async def signing_keys(cluster: LocalCluster) -> list[str]:
    async with connected(cluster.etcd.endpoint, login=etcd_login(cluster)) as metastore:
        found = await metastore.range(KEYS.signing_key("0").removesuffix("0"))
    assert found.key_values
    return [metadata_pb2.SigningKey.FromString(each.value).key_id for each in found.key_values]


async def add_signing_key(cluster: LocalCluster) -> str:
    """Add a key that signs from now on, as the controller's does when all servers have had time to see it."""
    key_id = secrets.token_hex(4)
    created_ms = round(time.time() * 1000) - SIGNS_AFTER_MS - 1_000
    added = metadata_pb2.SigningKey(key_id=key_id, secret=secrets.token_bytes(32), created_ms=created_ms)
    await write(cluster, Put(KEYS.signing_key(key_id), added.SerializeToString()))
    return key_id


def everyone_knows(cluster: LocalCluster, api_key: str, key_id: str) -> bool:
    """Return whether every server signs by a key, and accepts the sessions of the others."""
    addresses = [part.address for part in (*cluster.coordinators, *cluster.brokers)]
    with contextlib.ExitStack() as ends:
        stubs = [
            auth_pb2_grpc.SessionServiceStub(ends.enter_context(grpc.insecure_channel(address)))
            for address in addresses
        ]
        tokens = [stub.OpenSession(auth_pb2.OpenSessionRequest(api_key=api_key), timeout=20).token for stub in stubs]
        if not all(token.startswith(f"hr1.{key_id}.") for token in tokens):
            return False
        for stub, token in zip(stubs, tokens, strict=True):
            stub.WhoAmI(auth_pb2.WhoAmIRequest(), timeout=20, metadata=(("authorization", f"Bearer {token}"),))
    return True
