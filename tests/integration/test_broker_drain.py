"""`headrace-broker drain` with a real broker: leadership moves, and the drain ends with the process."""

from __future__ import annotations

import subprocess
from typing import Any

from headrace_devcluster.service import LocalService

from tests.fork_server import run_command
from tests.integration.replicated import Follower, Replicated, Writer, until


def drain(
    replicated: Replicated, number: int, /, *, timeout: float = 30.0, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command with the settings of that broker."""
    broker: LocalService = replicated.broker(number)
    options = [f"--set={name}={value}" for name, value in {**broker.spec.settings, **settings}.items()]
    return run_command("headrace_broker", "drain", f"--timeout={timeout}", *options)


def test_a_drained_broker_leads_nothing_until_it_starts_again(replicated: Replicated) -> None:
    """H24: leadership goes, the broker stays in sync; a new process of it is not drained."""
    replicated.create("drained", [[1, 2, 3], [1, 3, 2]], min_insync_replicas=2)
    done = drain(replicated, 1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "broker 1 is drained and may be stopped\n", "")
    partitions = replicated.admin.describe_topic("drained").partitions
    assert [each.leader_id for each in partitions] == [2, 3]
    assert all(1 in each.in_sync_replicas for each in partitions)
    assert draining(replicated) == {1}
    assert replicated.broker(1).stop() == 0
    replicated.cluster.restart(replicated.broker(1))
    until(lambda: not draining(replicated), "the end of the drain")


def test_an_upgrade_of_every_broker_costs_no_record(replicated: Replicated) -> None:
    """As an upgrade restarts them under load, drained one by one: no send fails, none is lost or there twice, and no
    replica is left behind when the next broker's turn comes."""
    replicated.create("upgraded", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas=2)
    with Follower(replicated.servers, "upgraded", 3) as follower:
        with Writer(replicated.servers, "upgraded", 3) as writer:
            for number in (1, 2, 3):
                writer.wait_for(200)
                done = drain(replicated, number)
                assert (done.returncode, done.stderr) == (0, "")
                assert replicated.broker(number).stop() == 0
                replicated.cluster.restart(replicated.broker(number))
                replicated.wait_in_sync("upgraded")
            writer.wait_for(200)
        until(lambda: not draining(replicated), "the end of the drains")
        follower.wait_for(len(writer.futures))
    writer.check(replicated)
    follower.check(writer)


def test_a_drain_that_times_out_lists_what_is_left(replicated: Replicated) -> None:
    """Exit code 1 and one sentence: the partitions, and what to do. A broker that is not there needs no drain."""
    replicated.create("held-up", [[1, 2]], min_insync_replicas=1)
    for coordinator in replicated.cluster.coordinators:
        coordinator.pause()  # No controller elects.
    done = drain(replicated, 1, timeout=1.0)
    assert done.returncode == 1
    assert done.stderr.startswith("error: broker 1 is not drained after 1 s: it still leads ")
    assert "held-up-0" in done.stderr
    assert done.stderr.endswith("Stop it anyway, or run `headrace cluster health` to find the cause.\n")
    done = drain(replicated, 1, broker_id=77)
    assert (done.returncode, done.stdout) == (0, "broker 77 is not registered: nothing to hand over\n")
    done = drain(replicated, 1, instance="a pod before")
    assert (done.returncode, done.stdout) == (0, "another instance of broker 1 is registered: nothing to hand over\n")
    done = drain(replicated, 1, cluster="elsewhere")
    assert (done.returncode, done.stdout) == (0, "there is no cluster elsewhere: nothing to hand over\n")


def draining(replicated: Replicated) -> set[int]:
    """The registered brokers that drain."""
    return {each.broker_id for each in replicated.admin.describe_cluster().brokers if each.draining}
