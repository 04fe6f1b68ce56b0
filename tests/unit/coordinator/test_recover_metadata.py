"""What the metadata becomes after a restore of etcd: the disks decide (H81); and the end of a generation is noticed."""

from __future__ import annotations

import asyncio
import json

import pytest
from headrace.groups.state import Group, GroupTopic, Member, Ownership, begin_epochs
from headrace.wire.typed.topic_columns import MAX_COLUMNS, evolved, parse_columns
from headrace_broker.log_state_export import as_text
from headrace_coordinator import recover_metadata
from headrace_coordinator.core.metadata_recovery import (
    GROUP_EPOCHS_APART,
    LEADER_EPOCHS_APART,
    SCHEMA_IDS_APART,
    BrokerLogState,
    LogEnd,
    empty_group,
    plan_partitions,
    reserve_column_ids,
)
from headrace_coordinator.recover_metadata import RecoveryRefusedError, read_log_state, recover_in
from headrace_server.clock_watch import OPERATOR
from headrace_server.cluster_identity import read_or_create
from headrace_server.generations import watch_generation
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.key_table import GroupOffsetKey, PartitionKey, TopicIdKey
from headrace_server.metastore.api import Delete, MetastoreRolledBackError, Put
from headrace_server.partition_state import PartitionState, Replica, ask_hand_over, encode, note_committed
from headrace_server.settings import SettingsError

from tests.fakes.memory_metastore import MemoryMetastore

TOPIC, OTHER = b"t" * 16, b"o" * 16
EPOCH = 77
BACKUP = PartitionState(
    replicas=(1, 2, 3),
    leader=Replica(3, 10),
    leader_epoch=4,
    in_sync=(Replica(1, 8), Replica(2, 9), Replica(3, 10)),
    min_insync_replicas=2,
    partition_epoch=6,
)


def end(epoch, offset, crc=1, last_epoch=None, start=0):
    return LogEnd(epoch, offset, crc, epoch if last_epoch is None else last_epoch, start)


def plan(ends, state=BACKUP, topic_id=TOPIC):
    """Of one partition, whose replicas end as told: by broker id, None for a disk without a log of it."""
    log_states = [
        BrokerLogState(broker_id, 1, b"s" * 16, b"", 1, {} if found is None else {(topic_id, 0): found})
        for broker_id, found in ends.items()
    ]
    return plan_partitions({TOPIC: "topic"}, {(TOPIC, 0): state}, (), log_states, EPOCH, 5)


def members(state):
    assert all(entry.broker_epoch == EPOCH for entry in state.in_sync)
    return [entry.broker_id for entry in state.in_sync]


@pytest.mark.parametrize(
    ("ends", "in_sync"),
    [
        ({1: end(4, 50), 2: end(4, 50), 3: end(4, 50)}, [1, 2, 3]),
        ({1: end(5, 40), 2: end(5, 40), 3: end(4, 90)}, [1, 2]),
        ({1: end(5, 40), 2: end(5, 41), 3: end(5, 41)}, [2, 3]),
        ({1: end(5, 41, crc=2), 2: end(5, 41), 3: end(4, 41)}, [1]),
        ({1: None, 2: end(-1, 0, 0), 3: end(4, 1)}, [3]),
        # Logs whose records were all deleted end where they begin: nothing below that is missing.
        ({1: end(4, 3), 2: end(-1, 4, 0, start=4), 3: end(-1, 4, 0, start=4)}, [2, 3]),
        ({1: end(4, 4), 2: end(-1, 4, 0, start=4), 3: end(4, 4)}, [2]),
        ({1: end(5, 6), 2: end(-1, 4, 0, start=4), 3: end(5, 6, start=4)}, [3]),
        ({1: end(5, 6, start=2), 2: end(4, 9, start=3), 3: end(5, 6, start=2)}, [1, 3]),
        ({1: end(5, 2), 2: end(4, 9, start=3), 3: end(-1, 9, 0, 4, start=9)}, [1]),
        ({1: None, 2: end(-1, 0, 0), 3: end(-1, 4, 0, start=4)}, [3]),
    ],
)
def test_the_most_complete_logs_are_in_sync(ends, in_sync):
    """A later epoch beats a longer log, then the end counts, then the start; the in-sync set of the backup does not."""
    state = plan(ends).states[(TOPIC, 0)]
    assert members(state) == in_sync
    assert state.leader is None
    assert state.partition_epoch == BACKUP.partition_epoch + 1
    assert state.durable


def test_a_pending_hand_over_request_is_dropped():
    """The successor was named in a session that is over."""
    asked = ask_hand_over(BACKUP, (Replica(1, 8),))
    state = plan({1: end(4, 50), 2: end(4, 50), 3: end(4, 50)}, asked).states[(TOPIC, 0)]
    assert state.successors == ()
    assert members(state) == [1, 2, 3]


@pytest.mark.parametrize(("ends", "high_watermark"), [({1: end(4, 50)}, 50), ({1: None}, 0)])
def test_nothing_counts_as_committed_that_no_disk_has(ends, high_watermark):
    """A member that ends below the key's high watermark would be taken for one that lost records, and not lead."""
    state = plan(ends, note_committed(BACKUP, 60)).states[(TOPIC, 0)]
    assert members(state) == [1]
    assert state.high_watermark == high_watermark
    assert plan({1: end(4, 90)}, note_committed(BACKUP, 60)).states[(TOPIC, 0)].high_watermark == 60


def test_leader_epochs_continue_above_all_that_a_disk_has():
    """Also above an epoch in which nothing was written, which a log knows of all the same."""
    state = plan({1: end(5, 40, last_epoch=9), 2: end(5, 40), 3: end(5, 40)}).states[(TOPIC, 0)]
    assert state.leader_epoch == 9 + LEADER_EPOCHS_APART
    assert (
        plan({1: end(2, 9), 2: None, 3: None}).states[(TOPIC, 0)].leader_epoch
        == BACKUP.leader_epoch + LEADER_EPOCHS_APART
    )


def test_a_replica_that_was_moved_since_counts():
    """A broker that the backup does not name holds more than all that it names: it becomes a replica."""
    found = plan({1: end(4, 50), 2: end(4, 50), 3: end(4, 50), 4: end(6, 70), 5: end(3, 99)})
    state = found.states[(TOPIC, 0)]
    assert (state.replicas, members(state)) == ((1, 2, 3, 4), [4])


def test_what_lost_disks_may_mean_is_said():
    """One of two in-sync members is enough to have everything; with fewer disks records may be lost, and it says so."""
    assert plan({1: end(4, 5), 2: end(4, 5)}).notes == []
    assert plan({1: end(4, 5), 2: end(4, 5)}).states[(TOPIC, 0)].unclean_epoch == 4 + LEADER_EPOCHS_APART
    assert "no log state of the brokers [2, 3]" in plan({1: end(4, 5)}).notes[0]
    none = plan({4: None})
    assert none.states[(TOPIC, 0)].in_sync == ()
    assert "until an unclean election" in none.notes[1]


def test_a_topic_that_the_backup_lacks_comes_back_under_its_id():
    """With all the partitions that a disk has a log of."""
    found = plan({1: end(3, 7), 2: end(3, 6)}, topic_id=OTHER)
    (topic,) = found.recovered_topics
    assert (topic.name, topic.partitions, topic.topic_id) == (f"recovered-{OTHER.hex()}", 1, OTHER)
    state = found.states[(OTHER, 0)]
    assert (state.replicas, members(state), state.leader_epoch) == ((1, 2), [1], 3 + LEADER_EPOCHS_APART)


def test_a_topic_that_was_deleted_before_the_backup_does_not_come_back():
    """A disk that was away has a log of it still; the backup says that it is to go."""
    log_states = [BrokerLogState(1, 1, b"s" * 16, b"", 1, {(OTHER, 0): end(3, 7)})]
    assert plan_partitions({}, {}, {OTHER}, log_states, EPOCH, 5).recovered_topics == []
    assert plan_partitions({}, {}, (), log_states, EPOCH, 5).recovered_topics != []


def test_partitions_that_the_backup_lacks_are_added_again():
    """The topic had three more when it was backed up last; no disk has one of them."""
    ends = {1: {(TOPIC, 0): end(4, 9), (TOPIC, 3): end(2, 7)}, 2: {(TOPIC, 0): end(4, 9), (TOPIC, 3): end(2, 8)}}
    log_states = [BrokerLogState(number, 1, b"s" * 16, b"", 1, logs) for number, logs in ends.items()]
    backup = {(TOPIC, number): BACKUP for number in (0, 1)}
    found = plan_partitions({TOPIC: "topic"}, backup, (), log_states, EPOCH, 5)
    assert (found.grown, found.recovered_topics) == ({TOPIC: 4}, [])
    assert sorted(found.states) == [(TOPIC, number) for number in range(4)]
    state = found.states[(TOPIC, 3)]
    assert (state.replicas, members(state), state.leader_epoch) == ((1, 2), [2], 2 + LEADER_EPOCHS_APART)
    assert state.min_insync_replicas == 2
    assert (found.states[(TOPIC, 2)].replicas, members(found.states[(TOPIC, 2)])) == ((1,), [1])
    assert "topic topic: partitions [2, 3] were added after the backup" in found.notes


def test_a_group_continues_without_members_above_all_its_epochs():
    """Members that live join again; a request from before the restore is one of an unknown member."""
    member = Member(b"m" * 16, member_epoch=9)
    key = (TOPIC, 0)
    group = Group(
        9,
        9,
        members={member.member_id: member},
        topics={TOPIC: GroupTopic(TOPIC, "topic", 1, 1)},
        target={key: member.member_id},
        owners={key: Ownership(member.member_id, 9)},
    )
    assert empty_group(group, 1, 5) == Group(9 + GROUP_EPOCHS_APART, 9 + GROUP_EPOCHS_APART, empty_since_ms=5)


def test_a_group_that_was_made_anew_since_the_backup_has_lower_epochs():
    """Its epochs began at the revision at which it was created, which may be far above the backup's epoch."""
    later = begin_epochs(Group(), 1, 10**9)
    assert empty_group(Group(9, 9), 2, 5).group_epoch > later.group_epoch


def test_a_log_state_is_read_as_it_was_written(tmp_path):
    """Corrupt logs apart; what is no log state is refused with the file's name."""
    log = {"log_start_offset": 1, "log_end_offset": 9, "last_batch_epoch": 3, "last_crc": 4, "last_epoch": 5}
    head = {
        "format": 1,
        "cluster_id": "c",
        "generation": 2,
        "broker_id": 7,
        "storage_id": "ab",
        "storage_incarnation": "",
        "directory_version": 6,
    }
    logs = [
        {"topic_id": TOPIC.hex(), "partition": 0, **log},
        {"topic_id": OTHER.hex(), "partition": 1, "corruption": "x"},
    ]
    path = tmp_path / "one.json"
    path.write_text(as_text({**head, "logs": logs}))
    expected = BrokerLogState(7, 2, b"\xab", b"", 6, {(TOPIC, 0): LogEnd(3, 9, 4, 5, 1)}, {(OTHER, 1): "x"})
    assert read_log_state(path) == ("c", expected)
    path.write_text(as_text({**head, "logs": []}))
    assert read_log_state(path)[1].logs == {}
    for wrong in ("", "[]", json.dumps({**head, "format": 2})):
        path.write_text(wrong)
        with pytest.raises(SettingsError, match=r"one\.json"):
            read_log_state(path)


async def test_who_works_in_a_generation_that_has_ended_ends(parts):
    """Also where the key was there before, and where it comes while the view is watched."""
    watching = asyncio.create_task(watch_generation(parts.view))
    await parts.metastore.txn([], [Put(parts.keyspace.superseded(), b"")])
    with pytest.raises(MetastoreRolledBackError, match="has ended: etcd was restored"):
        await watching
    with pytest.raises(MetastoreRolledBackError, match="Start this process again"):
        await watch_generation(parts.view)


async def test_processes_of_the_new_generation_measure_their_clocks_by_the_operators():
    memory = MemoryMetastore()
    before = await read_or_create(memory, "c", "id")
    assert list(await recover_in(memory, "c", [], (), 1_000, apply=True))
    after = await read_or_create(memory, "c", "id")
    assert after.generation == before.generation + 1
    stored = (await memory.get(after.keyspace.clock(OPERATOR))).key_value
    assert stored is not None
    assert metadata_pb2.ProcessClock.FromString(stored.value).believed_ms == 1_000


async def test_a_topic_without_any_log_begins_again_under_another_id():
    """As one that was deleted after the backup: its offsets begin at 0, and a position among its former records must
    not be one among new ones. The id of a topic that a disk has, and offsets in it, stay. Twice, it is a third one."""
    memory = MemoryMetastore()
    identity = await read_or_create(memory, "c", "id")
    for topic_id, name in ((TOPIC, "kept"), (OTHER, "deleted")):
        topic = metadata_pb2.Topic(name=name, topic_id=topic_id, partitions=1, created_ms=7).SerializeToString()
        keys = identity.keyspace
        named = [Put(keys.topic(name), topic), Put(keys.topic_by_id(topic_id), topic)]
        offset = Put(keys.group_offset("g", topic_id, 0), b"offset")
        await memory.txn([], [*named, offset, Put(keys.partition(topic_id, 0), encode(BACKUP))])
    seen = []
    for generation in (1, 2):
        log_states = [
            ("id", BrokerLogState(number, generation, b"s" * 16, b"", 1, {(TOPIC, 0): end(4, 9)}))
            for number in (1, 2, 3)
        ]
        lines = list(await recover_in(memory, "c", log_states, (), 1_000, apply=True))
        begun = "topic deleted: no disk has a log of it, as after a deletion; its offsets begin again, under another id"
        assert begun in lines
        assert not any(line.startswith("topic kept") for line in lines)
        keys = (await read_or_create(memory, "c", "id")).keyspace
        found = await memory.get(keys.topic("deleted"))
        topic = metadata_pb2.Topic.FromString(found.key_value.value)
        seen.append(topic.topic_id)
        assert (topic.name, topic.created_ms, len(topic.topic_id)) == ("deleted", 7, 16)
        by_id = (await memory.get(keys.topic_by_id(topic.topic_id))).key_value
        assert metadata_pb2.Topic.FromString(by_id.value) == topic
        assert (await memory.get(keys.partition(topic.topic_id, 0))).key_value is not None
        left = (await memory.range(keys.prefix)).key_values + (await memory.range(keys.groups_prefix)).key_values
        assert not any(
            isinstance(key := keys.parse(each.key), PartitionKey | TopicIdKey | GroupOffsetKey)
            and key.topic_id == OTHER
            for each in left
        )
        assert (await memory.get(keys.group_offset("g", TOPIC, 0))).key_value.value == b"offset"
        kept = (await memory.get(keys.topic_by_id(TOPIC))).key_value
        assert metadata_pb2.Topic.FromString(kept.value).name == "kept"
    assert len({OTHER, *seen}) == 3


async def test_offsets_of_a_partition_without_any_log_are_dropped():
    """The topic stays, since a disk has another partition of it; this one begins again at 0."""
    memory = MemoryMetastore()
    keys = (await read_or_create(memory, "c", "id")).keyspace
    topic = metadata_pb2.Topic(name="kept", topic_id=TOPIC, partitions=2).SerializeToString()
    puts = [Put(keys.topic("kept"), topic), Put(keys.topic_by_id(TOPIC), topic)]
    for number in (0, 1):
        puts.append(Put(keys.partition(TOPIC, number), encode(BACKUP)))
        puts.append(Put(keys.group_offset("g", TOPIC, number), b"offset"))
    await memory.txn([], puts)
    log_states = [("id", BrokerLogState(number, 1, b"s" * 16, b"", 1, {(TOPIC, 0): end(4, 9)})) for number in (1, 2, 3)]
    assert await recover_in(memory, "c", log_states, (), 1_000, apply=True)
    keys = (await read_or_create(memory, "c", "id")).keyspace
    offsets = [(await memory.get(keys.group_offset("g", TOPIC, number))).key_value for number in (0, 1)]
    assert [each is not None for each in offsets] == [True, False]


def topic_puts(keys, partitions=1, **configs):
    """Of a topic named `kept` with replicas 1 to 3, as `states()` describes their disks."""
    topic = metadata_pb2.Topic(name="kept", topic_id=TOPIC, partitions=partitions, configs=configs).SerializeToString()
    puts = [Put(keys.topic("kept"), topic), Put(keys.topic_by_id(TOPIC), topic)]
    return [*puts, *(Put(keys.partition(TOPIC, number), encode(BACKUP)) for number in range(partitions))]


def states(*numbers):
    """Log states of three brokers that have the partitions `numbers` of the topic."""
    logs = {(TOPIC, number): end(4, 9) for number in numbers}
    return [("id", BrokerLogState(broker_id, 1, b"s" * 16, b"", 1, logs)) for broker_id in (1, 2, 3)]


async def test_a_topic_has_the_partitions_again_that_were_added_after_the_backup():
    memory = MemoryMetastore()
    await memory.txn([], topic_puts((await read_or_create(memory, "c", "id")).keyspace))
    lines = list(await recover_in(memory, "c", states(0, 1), (), 1_000, apply=True))
    assert "topic kept: partitions [1] were added after the backup" in lines
    keys = (await read_or_create(memory, "c", "id")).keyspace
    for key in (keys.topic("kept"), keys.topic_by_id(TOPIC)):
        assert metadata_pb2.Topic.FromString((await memory.get(key)).key_value.value).partitions == 2
    assert (await memory.get(keys.partition(TOPIC, 1))).key_value is not None


class OtherRun(MemoryMetastore):
    """Runs another recovery to its end, and starts a broker, before the `at`-th transaction of the first one."""

    at = -1

    async def txn(self, *arguments, **options):
        if self.at == 0:
            self.at = -1
            await recover_in(self, "c", states(0), (), 1_000, apply=True)
            self.keys = (await read_or_create(self, "c", "id")).keyspace
            await super().txn([], [Put(self.keys.partition(TOPIC, 0), b"elected since")])
        self.at -= self.at > 0
        return await super().txn(*arguments, **options)


@pytest.mark.parametrize("at", range(4))
async def test_of_two_runs_the_earlier_one_changes_nothing_any_more(at):
    """It would write over the state of partitions that have leaders again in the generation of the other."""
    memory = OtherRun()
    await memory.txn([], topic_puts((await read_or_create(memory, "c", "id")).keyspace))
    memory.at = at
    with pytest.raises(RecoveryRefusedError, match="another run"):
        await recover_in(memory, "c", states(0), (), 1_000, apply=True)
    assert (await read_or_create(memory, "c", "id")).generation == 2
    assert (await memory.get(memory.keys.partition(TOPIC, 0))).key_value.value == b"elected since"


async def test_new_columns_and_schemas_get_ids_that_no_record_has():
    """Since the backup a column `3`, or a schema `8`, may have been added: records have it, and etcd does not know."""
    memory = MemoryMetastore()
    keys = (await read_or_create(memory, "c", "id")).keyspace
    columns = "1 page string, 2 size int64 dropped"
    registry = metadata_pb2.SchemaRegistryState(last_schema_id=7, compatibility="FULL").SerializeToString()
    await memory.txn([], [*topic_puts(keys, columns=columns), Put(keys.schema_registry(), registry)])
    lines = list(await recover_in(memory, "c", states(0), (), 1_000, apply=True))
    assert any(line.startswith("topic kept: its columns are those of the backup") for line in lines)
    keys = (await read_or_create(memory, "c", "id")).keyspace
    for key in (keys.topic("kept"), keys.topic_by_id(TOPIC)):
        found = metadata_pb2.Topic.FromString((await memory.get(key)).key_value.value).configs["columns"]
        assert parse_columns(found).current == parse_columns(columns).current
        added = parse_columns(evolved(found, "page string, user int64", "backward")).by_name("user")
        assert added.id > 2 + MAX_COLUMNS
    state = metadata_pb2.SchemaRegistryState.FromString((await memory.get(keys.schema_registry())).key_value.value)
    assert (state.last_schema_id, state.compatibility) == (7 + SCHEMA_IDS_APART, "FULL")


async def test_columns_without_room_for_a_reserved_id_stay_and_unknown_ones_are_refused():
    full = ", ".join(f"{number} c{number} bool" for number in range(1, MAX_COLUMNS + 1))
    assert reserve_column_ids(full) == full
    memory = MemoryMetastore()
    keys = (await read_or_create(memory, "c", "id")).keyspace
    await memory.txn([], topic_puts(keys, columns="1 page tensor"))
    with pytest.raises(RecoveryRefusedError, match="columns of topic kept"):
        await recover_in(memory, "c", states(0), (), 1_000, apply=True)


async def test_what_a_coordinator_acknowledges_before_it_ends_is_kept(monkeypatch):
    memory = MemoryMetastore()
    keys = (await read_or_create(memory, "c", "id")).keyspace
    await memory.txn([], [Put(keys.coordinator("one"), b"")])

    async def it_ends(_seconds):
        await memory.txn([], [*topic_puts(keys), Delete(keys.coordinator("one"))])

    monkeypatch.setattr(recover_metadata.asyncio, "sleep", it_ends)
    await recover_in(memory, "c", states(0), (), 1_000, apply=True)
    keys = (await read_or_create(memory, "c", "id")).keyspace
    assert (await memory.get(keys.topic("kept"))).key_value is not None


async def test_users_stay_and_the_signing_keys_of_the_backup_go():
    """Who has read the backup could sign sessions with them; the hashes of API keys are of no use to anybody."""
    memory = MemoryMetastore()
    keyspace = (await read_or_create(memory, "c", "id")).keyspace
    await memory.txn([], [Put(keyspace.user("ada"), b""), Put(keyspace.signing_key("k"), b"")])
    await recover_in(memory, "c", [], (), 1_000, apply=False)
    assert (await memory.get(keyspace.signing_key("k"))).key_value
    await recover_in(memory, "c", [], (), 1_000, apply=True)
    left = (await memory.range(keyspace.identity_prefix)).key_values
    assert [found.key for found in left] == [keyspace.user("ada")]
