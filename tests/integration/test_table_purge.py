"""Purges on a real cluster: after one, no file of any broker has a byte of the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import headrace
import pytest
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.etcd_backups import command
from tests.integration.replicated import BROKER_SETTINGS, until

TABLE = {"cleanup_policy": "compact", "table": "yes", "segment_bytes": 1 << 16, "max_batch_bytes": 1 << 14}
"""With the defaults of what delays a removal: a day for deletions, a minute for files, batches of retries."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(LocalClusterSpec(brokers=3, coordinators=1, broker_settings=BROKER_SETTINGS)) as running:
        yield running


@pytest.fixture
def users(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[headrace.Table]:
    name = request.node.name.split("[")[0]
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        settings: dict[str, Any] = {"partitions": 2, "replication_factor": 3, "config": TABLE, "exist_ok": True}
        until(lambda: admin.create_topic(name, **settings), "three brokers live")
    with headrace.Table(name, bootstrap_servers=cluster.bootstrap_servers) as table:
        yield table


def person_of(users: headrace.Table) -> str:
    """Return a name that is in no file but by rows of this table."""
    return users._name[::-1]


def holders(cluster: LocalCluster, secret: str) -> list[str]:
    """Return the brokers with a file that has some text."""
    assert cluster.directory is not None
    return [
        broker.name
        for broker in cluster.brokers
        if any(
            secret.encode() in path.read_bytes()
            for path in (Path(cluster.directory) / broker.name).rglob("*")
            if path.is_file()
        )
    ]


def purge(cluster: LocalCluster, table: str, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run the command; return its document, and what it said meanwhile."""
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    done = command("headrace.cli", "table", "purge", table, *arguments, "--output", "json", *servers)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout), done.stderr


def fill(users: headrace.Table) -> None:
    """Write rows over and over, so that the log has several segments, with a person's data in each."""
    person = person_of(users)
    for turn in range(4):
        for number in range(40):
            users.put(f"other-{number}", {"value": f"{turn} " + "x" * 1_000})
        users.put(f"{person}-1", {"name": f"value of {person} {turn}", "notes": "y" * 1_000})
        users.put(f"{person}-2", {"name": f"value of {person} {turn}"})


def test_a_purged_row_is_in_no_file(cluster: LocalCluster, users: headrace.Table) -> None:
    """By key: values, keys and the deletion, in closed segments and in the active one, of all three replicas."""
    fill(users)
    person = person_of(users)
    keys = [f"{person}-{number}" for number in (1, 2)]
    assert len(holders(cluster, person)) == 3
    plan, _ = purge(cluster, users._name, *keys, "--dry-run")
    assert plan["existing_rows"] == 2
    assert len(plan["replicas"]) == 6
    assert users.get(keys[0]) is not None
    document, said = purge(cluster, users._name, *keys, "--yes")
    assert holders(cluster, person) == []
    assert document["done"] is True
    partitions = {each["partition"] for each in document["replicas"]}
    found = sorted((each["partition"], each["broker_id"]) for each in document["replicas"])
    assert found == [(partition, broker) for partition in sorted(partitions) for broker in (1, 2, 3)]
    assert said.count("removed") == len(found)
    assert users.get(keys[0]) is None
    assert all(users.get(f"other-{number}") is not None for number in range(40))
    users.put(keys[0], {"name": "another"})
    assert dict(users.get(keys[0]) or {}) == {"name": "another"}


def test_rows_of_a_prefix_are_purged(cluster: LocalCluster, users: headrace.Table) -> None:
    fill(users)
    document, _ = purge(cluster, users._name, "--prefix", person_of(users))
    assert document["done"] is True
    assert holders(cluster, person_of(users)) == []
    assert users.count().rows == 40


def test_what_is_deleted_or_expired_is_purged(cluster: LocalCluster, users: headrace.Table) -> None:
    fill(users)
    person = person_of(users)
    users.delete(f"{person}-1")
    users.put(f"{person}-2", {"name": f"{person} for a moment"}, ttl=timedelta(milliseconds=1))
    until(lambda: users.get(f"{person}-2") is None, "it has expired")
    assert holders(cluster, person)
    results = list(users.purge(deleted=True))
    assert all(each.done for each in results), results
    assert holders(cluster, person) == []
    assert users.count().rows == 40


def test_a_wide_row_is_purged(cluster: LocalCluster, users: headrace.Table) -> None:
    """Its deletion does not fit into a batch of this table."""
    person = person_of(users)
    for start in range(0, 1_000, 100):
        users.put(person, {f"{number:06}": f"value of {person}" for number in range(start, start + 100)})
    with pytest.raises(headrace.BatchTooLargeError):
        users.delete(person)
    purge(cluster, users._name, person, "--yes")
    assert holders(cluster, person) == []
    assert users.get(person) is None


def test_a_broker_that_is_away_is_named(cluster: LocalCluster, users: headrace.Table) -> None:
    """The others are purged; once it is back, the same command purges it, too."""
    fill(users)
    person, broker = person_of(users), cluster.broker(3)
    broker.kill()
    document, said = purge(cluster, users._name, "--prefix", person, "--wait-timeout", "60", code=1)
    assert {each["broker_id"] for each in document["replicas"] if not each["done"]} == {3}
    assert "may still be in files of broker 3" in said
    assert holders(cluster, person) == [broker.name]
    cluster.restart(broker)
    document, _ = purge(cluster, users._name, "--prefix", person, "--wait-timeout", "120")
    assert document["done"] is True
    assert holders(cluster, person) == []


def test_wrong_calls_purge_nothing(users: headrace.Table) -> None:
    wrong: list[dict[str, Any]] = [{}, {"keys": ["a"], "deleted": True}, {"prefix": "a", "deleted": True}]
    for arguments in wrong:
        with pytest.raises(headrace.ConfigError):
            list(users.purge(**arguments))
