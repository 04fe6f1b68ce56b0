"""The checks find what is planted in a cluster that is well."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from headrace_server.internal_v1.metadata_pb2 import BrokerLive

from tests.simulation.broker import simulated
from tests.simulation.cluster import WATCH_MS, Cluster
from tests.simulation.history import OK, Final, Poll, Send
from tests.simulation.plan import Plan
from tests.simulation.world import SimulationError


@pytest.fixture(scope="module")
def cluster():
    """One that has committed records and has deleted some of them; tests plant what they take back."""
    with simulated(1, small=True), closing(Cluster(Plan(1, buggy_etcd=True))) as cluster:
        cluster.prepare()
        cluster.run_for(600)
        leader = cluster.leader_host(cluster.partitions[0])
        leader.broker.delete_records(leader, 5)
        cluster.run_until(lambda: all(each.log.log_start_offset == 5 for each in hosts(cluster)), 5_000)
        cluster.checks.check_all(is_last=True)
        yield cluster


def hosts(cluster):
    return [cluster.host(broker_id, cluster.partitions[0]) for broker_id in cluster.brokers]


def test_a_cache_that_lacks_a_key_is_found_also_with_an_etcd_that_lies(cluster, monkeypatch):
    """Of the writes that were lost, a list is to bring all: what it does not is wrong for good."""
    assert cluster.checks.wrong_caches() == []
    _, view = cluster.caches()[0]
    key = cluster.keyspace.topic_by_id(cluster.topic.topic_id)
    kept = [each for each in view.source.items(cluster.keyspace.prefix) if each.key != key]
    monkeypatch.setattr(view, "source", SimpleNamespace(revision=view.source.revision, items=lambda prefix: kept))
    monkeypatch.setattr(cluster, "relist_ms", 20 - WATCH_MS)
    assert len(cluster.checks.wrong_caches()) == 1
    with pytest.raises(SimulationError, match="I19"):
        cluster._await_caches()


def test_a_high_watermark_that_falls_at_a_follower_is_found(cluster):
    """Nothing tells the checks of a fall: they look at the replicas that an event touched."""
    for host in hosts(cluster):
        host.followed = None
        cluster.checks._check_high_watermark(host)
        epoch, high_watermark = host.followed
        host.followed = epoch - 1, high_watermark + 1
        cluster.checks._check_high_watermark(host)
        host.followed = epoch, high_watermark + 1
        with pytest.raises(SimulationError, match="I8"):
            cluster.checks._check_high_watermark(host)


def test_a_log_start_that_falls_is_found_when_the_log_is_opened(cluster, monkeypatch):
    """At each replica, whatever leaders tell clients."""
    for host in hosts(cluster):
        reference = cluster.checks._reference(host)
        cluster.checks._check_start(host, reference)
        assert reference.log_start == 5
        monkeypatch.setattr(host.log._state, "log_start_offset", 4)
        with pytest.raises(SimulationError, match="I18"):
            cluster.checks._check_start(host, reference)
        monkeypatch.undo()


def test_what_retention_takes_is_old_unless_compaction_had_taken_it(cluster, monkeypatch):
    """A segment is as old as the records that are left in it (H43)."""
    plan = replace(cluster.plan, compacts=True, retention_ms=1_000_000)
    monkeypatch.setattr(cluster, "plan", plan)
    host = hosts(cluster)[0]
    end = int(host.log.log_end_offset)
    entry = cluster.checks._reference(host).entries[-1]
    assert host.offsets_below(end) == list(range(5, end))
    monkeypatch.setattr(host, "offsets_below", lambda _: [entry.base])
    with pytest.raises(SimulationError, match=f"H43.*removes {entry.base} to {entry.end}"):
        cluster.checks.expired(host, end)
    monkeypatch.setattr(host, "offsets_below", lambda _: [])
    cluster.checks.expired(host, end)


def test_a_replica_that_the_key_names_may_start_over_only_if_its_broker_lost_data(cluster, monkeypatch):
    """The key names the session before until the controller has seen the new one; seed 501369 of tables began so."""
    monkeypatch.setattr(cluster, "plan", replace(cluster.plan, compacts=True))
    host, store = hosts(cluster)[0], cluster.etcd.store
    key = cluster.keyspace.broker(host.broker.broker_id)
    session = store.now(key)
    assert not cluster.checks._is_behind_compaction(host)
    for is_clean in (True, False):
        live = BrokerLive.FromString(session.value)
        live.clean, live.resumes, live.storage_since = is_clean, session.create_revision, session.create_revision + 1
        again = replace(session, value=live.SerializeToString(), create_revision=session.create_revision + 1)
        monkeypatch.setattr(store, "now", lambda _, again=again: again)
        assert cluster.checks._is_behind_compaction(host) is not is_clean


def test_what_is_committed_must_be_kept_again_once_all_are_in_sync(cluster, monkeypatch):
    """After an unclean election: the loss that an administrator accepted is one, not any later one."""
    key = cluster.partitions[0]
    partition, state = cluster.checks.partitions[key], cluster.state(key)
    monkeypatch.setattr(partition, "replicas", {})
    cluster.checks.unclean_allowed(key)
    cluster.checks._check_kept(partition)
    after = replace(state, partition_epoch=state.partition_epoch + 1)
    cluster.checks._check_write(key, after)
    monkeypatch.setattr(partition, "state", state)
    with pytest.raises(SimulationError, match="I15"):
        cluster.checks._check_kept(partition)


@pytest.mark.parametrize(
    ("send", "poll", "expected"),
    [
        (Send("w0", 0, ("a",), OK, 0, True, 1, 2), Poll("r0", 0, 0, ((0, "a"),)), ""),
        (Send("w0", 0, ("a",), OK, 1, True, 1, 2), Poll("r0", 0, 0, ((0, "a"),)), "ack-offset-mismatch"),
        (Send("w0", 0, ("b",), OK, 1, True, 1, 2), Poll("r0", 0, 0, ()), "lost-postfix"),
        (Send("w0", 0, ("a",), OK, 0, True, 1, 2), Poll("r0", 0, 0, ((0, "b"),)), "inconsistent-offset"),
    ],
)
def test_the_history_of_a_deleted_topic_is_judged(send, poll, expected, monkeypatch):
    """By what was committed: there is no replica any more. One that came back empty is not."""
    with closing(Cluster(Plan(1))) as cluster:
        cluster.topic.topic_id = b"t"
        cluster._topics.append(b"t")
        cluster.topic.partitions = 1
        [key] = cluster.partitions
        cluster.checks.add(key)
        cluster.checks.deleted(key)
        cluster.topic.partitions = 0
        monkeypatch.setattr(cluster, "_committed", lambda key: Final("committed", 0, 0, ((0, "a"),)))
        cluster.sends, cluster.polls = [send], [poll]
        if expected:
            with pytest.raises(SimulationError, match=expected):
                cluster._judge_histories([])
            cluster.checks.etcd_went_back()
        cluster._judge_histories([])
