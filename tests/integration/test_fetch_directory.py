"""A topic of a real cluster as a directory: the same bytes, continued, as of an offset, and only read."""

from __future__ import annotations

import json

import headrace
import pytest
from headrace.cli.main import app
from headrace.display import progress
from headrace.embedded.opened import OpenDirectory
from headrace.wire.encoding import encode_batch
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from typer.testing import CliRunner

WAIT = 60


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as running:
        yield running


def fill(cluster, topic, values, **settings):
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers, batch_records=50, **settings) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=value % 2)


def create(cluster, topic, **config):
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic(topic, partitions=2, config=config)


def bytes_of(log):
    """Return all segments of a log."""
    return b"".join(file.read_bytes() for file in sorted(log.glob("*.log")))


def test_a_copy_has_the_same_bytes_and_is_continued(cluster, tmp_path):
    create(cluster, "copied", max_batch_bytes=1 << 14)
    fill(cluster, "copied", range(1000), compression_type="gzip")
    servers = cluster.bootstrap_servers
    found = headrace.fetch("copied", tmp_path / "copy", bootstrap_servers=servers)
    assert [(each.partition, each.start_offset, each.end_offset) for each in found] == [(0, 0, 500), (1, 0, 500)]
    fill(cluster, "copied", range(1000, 1100))
    told = []
    found = headrace.fetch("copied", tmp_path / "copy", bootstrap_servers=servers, progress=told.append)
    assert [each.records for each in found] == [50, 50]
    assert told
    data = cluster.directory
    with headrace.open(tmp_path / "copy", read_only=True) as log:
        assert sorted(int(record.value) for record in log.reader("copied")) == list(range(1100))
        assert log.admin.describe_config("copied")["max_batch_bytes"].value == str(1 << 14)
        with headrace.Admin(bootstrap_servers=servers) as admin:
            topic_id = admin.describe_topic("copied").topic_id
        assert log.admin.describe_topic("copied").topic_id == topic_id
    for number in range(2):
        name = f"{topic_id.hex()}-{number}"
        ours, theirs = tmp_path / "copy" / name, next(path for path in data.rglob(name) if path.is_dir())
        assert bytes_of(ours) == bytes_of(theirs) != b""


def test_a_copy_shows_its_progress(cluster, tmp_path, monkeypatch, capsys):
    """A copy that continues another counts what is left; the function and the command show the same."""
    monkeypatch.setenv("HEADRACE_PROGRESS", "on")
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(progress.Lines, "interval_seconds", 0.0)
    create(cluster, "watched")
    fill(cluster, "watched", range(1000))
    headrace.fetch("watched", tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)
    assert "fetch watched: 100 %, 1,000 of 1,000 records" in capsys.readouterr().err
    fill(cluster, "watched", range(100))
    arguments = ["fetch", "watched", "--dir", str(tmp_path / "copy"), "-b", cluster.bootstrap_servers]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    assert "fetch watched: 100 %, 100 of 100 records" in found.stderr


def test_a_copy_is_only_read(cluster, tmp_path):
    create(cluster, "closed")
    fill(cluster, "closed", range(10))
    headrace.fetch("closed", tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)
    with headrace.open(tmp_path / "copy") as log:
        producer = log.producer()
        with pytest.raises(headrace.InvalidRequestError, match="is a copy of one in cluster"):
            producer.send("closed", b"mine").result(WAIT)
        with pytest.raises(headrace.DeliveryError):
            producer.close()
        log.admin.create_topic("own")
        with log.producer() as producer:
            producer.send("own", b"mine").result(WAIT)


def test_as_of_an_offset_and_of_another_topic_of_the_name(cluster, tmp_path):
    create(cluster, "until")
    fill(cluster, "until", range(1000))
    result = CliRunner().invoke(
        app,
        f"fetch until --dir {tmp_path / 'copy'} --until 120 --output json -b {cluster.bootstrap_servers}",
    )
    assert result.exit_code == 0, result.output
    ends = [each["end_offset"] for each in json.loads(result.stdout)["partitions"]]
    assert all(120 <= end < 200 for end in ends)
    with headrace.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.delete_topic("until")
    create(cluster, "until")
    with pytest.raises(headrace.TopicAlreadyExistsError, match="another topic named until"):
        headrace.fetch("until", tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)


def test_a_copy_continues_after_its_process_ended_in_the_middle(cluster, tmp_path, monkeypatch):
    create(cluster, "stopped")
    fill(cluster, "stopped", range(400))

    def stop(copied):
        if copied.partition == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        headrace.fetch("stopped", tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers, progress=stop)
    found = headrace.fetch("stopped", tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)
    assert [each.end_offset for each in found] == [200, 200]
    opened = OpenDirectory(str(tmp_path / "copy"), creates=False)
    try:
        for number in range(2):
            partition = opened.readable(opened.topics.by_name["stopped"], number)
            partition.log.reader.verify()
    finally:
        opened.close()


def test_a_copy_continues_behind_records_that_the_cluster_has_removed(cluster, tmp_path):
    """It keeps those that it has; between them and the log start of the cluster it has none."""
    create(cluster, "removed")
    fill(cluster, "removed", range(200))
    servers = cluster.bootstrap_servers
    headrace.fetch("removed", tmp_path / "copy", bootstrap_servers=servers)
    fill(cluster, "removed", range(200, 400))
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.delete_records("removed", {0: 150, 1: 200})
    fill(cluster, "removed", range(400, 410))
    found = headrace.fetch("removed", tmp_path / "copy", bootstrap_servers=servers)
    assert [each.end_offset for each in found] == [205, 205]
    with headrace.open(tmp_path / "copy") as log, log.reader("removed") as reader:
        offsets = {0: [], 1: []}
        for record in reader:
            assert int(record.value) == 2 * record.offset + record.partition
            offsets[record.partition].append(record.offset)
    assert offsets == {0: [*range(100), *range(150, 205)], 1: [*range(100), *range(200, 205)]}


@pytest.mark.parametrize("fewer", [0, 3])
def test_a_copy_whose_last_records_the_cluster_has_lost(cluster, tmp_path, fewer):
    """It has others in their place, and no more than the copy: nothing is left to copy, and that is no success."""
    name = f"lost-{fewer}"
    create(cluster, name)
    fill(cluster, name, range(20))
    headrace.fetch(name, tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)
    opened = OpenDirectory(str(tmp_path / "copy"), creates=False)
    topic_id = opened.topics.by_name[name].topic_id
    opened.copied(topic_id, 1).append([encode_batch([b"lost"] * (10 + fewer), base_timestamp_ms=1)])
    opened.close()
    fill(cluster, name, range(20, 40))
    with pytest.raises(headrace.DivergedLogError, match=r"partition 1 of lost-. has another record .* at offset 19"):
        headrace.fetch(name, tmp_path / "copy", bootstrap_servers=cluster.bootstrap_servers)
    with headrace.open(tmp_path / "copy", read_only=True) as log:
        ends = [at.offset for at in log.admin.list_offsets(name, "latest").values()]
    assert ends == [10, 20 + fewer], "nothing is changed"
