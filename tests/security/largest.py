"""The largest request of every method: as many items as its row in `METHODS` allows, of topics that are there.

Nothing in them is wrong, so that a server does all the work that one call can ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from headrace.v1 import auth_pb2, broker_pb2, cluster_pb2, groups_pb2, process_pb2, tables_pb2, topics_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.table_keys import table_key

REQUEST_PARTITIONS = 10_000
"""`max_request_partitions` of brokers, `max_request_partitions` of coordinators, and `MAX_REQUEST_PARTITIONS`."""
REQUEST_TOPICS = 1_000
MANY_TOPICS = 200
TYPED = "typed"
"""Typed topic, with the columns `TYPED_COLUMNS`."""
TYPED_COLUMNS = "a list<decimal(6, 2)>"


@dataclass(frozen=True)
class World:
    """What is there: a wide topic, many narrow ones, and a group with an offset of each partition of the wide one."""

    wide: str
    wide_id: bytes
    partitions: int
    many: tuple[str, ...]
    group: str

    @property
    def numbers(self) -> range:
        """The partitions of the wide topic that one request may name."""
        return range(min(self.partitions, REQUEST_PARTITIONS))


def produce(world: World, acks: int = broker_pb2.ACKS_ALL) -> Message:
    """One small batch for each partition."""
    batch = encode_batch([b"x"], base_timestamp_ms=1)
    partitions = [broker_pb2.PartitionProduce(partition=number, batches=[batch]) for number in world.numbers]
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=world.wide), partitions=partitions)
    return broker_pb2.ProduceRequest(acks=acks, timeout_ms=50_000, topics=[topic])


def produce_one_partition(world: World) -> Message:
    """As many batches as a request may have, all for one partition."""
    batch = encode_batch([b"x"], base_timestamp_ms=1)
    partition = broker_pb2.PartitionProduce(partition=0, batches=[batch] * REQUEST_PARTITIONS)
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=world.wide), partitions=[partition])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_ALL, timeout_ms=50_000, topics=[topic])


def produce_records(world: World) -> Message:
    """The simple form: 10,000 records of one partition."""
    records = [topics_pb2.Record(value=b"x")] * 10_000
    partition = broker_pb2.PartitionProduce(partition=0, records=records)
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=world.wide), partitions=[partition])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_ALL, timeout_ms=50_000, topics=[topic])


def produce_rows(world: World) -> Message:
    """The simple form for a typed topic: 96,000 decimals as JSON."""
    del world
    records = [topics_pb2.Record(value=b'{"a": [%s]}' % b", ".join([b'"1.23"'] * 95))] * 1_000
    partition = broker_pb2.PartitionProduce(partition=0, records=records)
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=TYPED), partitions=[partition])
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_ALL, timeout_ms=50_000, topics=[topic])


def fetch(world: World, offset: int = 0, max_wait_ms: int = 0, *, as_records: bool = False) -> Message:
    """Every partition from `offset` on."""
    partitions = [broker_pb2.PartitionFetch(partition=number, offset=offset) for number in world.numbers]
    topic = broker_pb2.TopicFetch(topic=topics_pb2.TopicRef(name=world.wide), partitions=partitions)
    return broker_pb2.FetchRequest(
        topics=[topic], max_bytes=32 << 20, min_bytes=1, max_wait_ms=max_wait_ms, as_records=as_records
    )


def list_offsets(world: World, spec: int = broker_pb2.OFFSET_SPEC_LATEST) -> Message:
    partitions = [broker_pb2.PartitionListOffsets(partition=number, spec=spec) for number in world.numbers]
    topic = broker_pb2.TopicListOffsets(topic=topics_pb2.TopicRef(name=world.wide), partitions=partitions)
    return broker_pb2.ListOffsetsRequest(topics=[topic])


def delete_records(world: World) -> Message:
    partitions = [broker_pb2.PartitionDeleteRecords(partition=number, before_offset=0) for number in world.numbers]
    topic = broker_pb2.TopicDeleteRecords(topic=topics_pb2.TopicRef(name=world.wide), partitions=partitions)
    return broker_pb2.DeleteRecordsRequest(timeout_ms=50_000, topics=[topic])


def refs(world: World) -> list[topics_pb2.TopicRef]:
    return [topics_pb2.TopicRef(name=name) for name in (world.wide, *world.many)]


def offsets(world: World, metadata: str = "") -> list[groups_pb2.TopicOffsets]:
    partitions = [
        groups_pb2.PartitionOffset(partition=number, offset=1, leader_epoch=1, metadata=metadata)
        for number in world.numbers
    ]
    return [groups_pb2.TopicOffsets(topic_id=world.wide_id, partitions=partitions)]


def heartbeat(world: World) -> Message:
    owned = groups_pb2.OwnedPartitions()
    owned.topics.add(topic_id=world.wide_id, partitions=world.numbers)
    return groups_pb2.HeartbeatRequest(
        client_id="c",
        group_id="joined",
        member_id=b"m" * 16,
        topics=[world.wide, *world.many],
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        owned=owned,
    )


def new_topics(world: World, *, validate_only: bool) -> Message:
    topics = [cluster_pb2.NewTopic(name=f"new-{number}", partitions=10) for number in range(REQUEST_TOPICS - 1)]
    return cluster_pb2.CreateTopicsRequest(topics=topics, validate_only=validate_only, timeout_ms=50_000)


def more_partitions(world: World) -> Message:
    lists = [cluster_pb2.ReplicaList(broker_ids=[1])] * 9_000
    return cluster_pb2.CreatePartitionsRequest(
        topic=topics_pb2.TopicRef(name=world.many[0]), total_partitions=9_001, assignments=lists, validate_only=True
    )


def delete_unclaimed_logs(world: World) -> Message:
    logs = [broker_pb2.LogReference(topic_id=world.wide_id, partition=number) for number in world.numbers]
    return broker_pb2.DeleteUnclaimedLogsRequest(logs=logs, validate_only=True)


def reassign(world: World) -> Message:
    moves = [
        cluster_pb2.PartitionReassignment(topic=topics_pb2.TopicRef(name=world.wide), partition=number, replicas=[1])
        for number in world.numbers
    ]
    return cluster_pb2.ReassignPartitionsRequest(partitions=moves, validate_only=True)


def elect(world: World) -> Message:
    topic = cluster_pb2.TopicPartitions(topic=topics_pb2.TopicRef(name=world.wide), partitions=world.numbers)
    return cluster_pb2.ElectLeadersRequest(type=cluster_pb2.ELECTION_TYPE_PREFERRED, topics=[topic], validate_only=True)


_CLUSTER, _GROUP, _BROKER, _TABLE = (f"/headrace.v1.{name}Service/" for name in ("Cluster", "Group", "Broker", "Table"))

TABLE = "rows"
ROWS = 10_000


def table_content() -> Message:
    """Produce the rows of the table `TABLE`, the first with as many columns as there are rows."""
    keys = [table_key(b"%05d" % number, b"c") for number in range(ROWS)]
    keys += [table_key(b"00000", b"%05d" % number) for number in range(ROWS)]
    batches = [
        encode_batch([b"x" * 50] * 1_000, keys[start : start + 1_000], base_timestamp_ms=1_700_000_000_000)
        for start in range(0, len(keys), 1_000)
    ]
    topic = broker_pb2.TopicProduce(topic=topics_pb2.TopicRef(name=TABLE))
    topic.partitions.add(partition=0, batches=batches)
    return broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_ALL, timeout_ms=50_000, topics=[topic])


def _table_read() -> tables_pb2.TableRead:
    return tables_pb2.TableRead(table=topics_pb2.TopicRef(name=TABLE), timeout_ms=50_000)


def purge_rows(**fields: Any) -> tables_pb2.PurgeRowsRequest:
    """Return a purge of the table."""
    return tables_pb2.PurgeRowsRequest(table=_table_read().table, timeout_ms=20_000, **fields)


def write_row(*, delete_row: bool) -> Message:
    """A row of as many columns as a request may name, or the deletion of one that has as many."""
    names = [] if delete_row else [b"%05d" % number for number in range(9_900)]
    columns = [tables_pb2.WriteColumn(name=name, value=b"x") for name in names]
    return tables_pb2.WriteRowRequest(
        table=topics_pb2.TopicRef(name=TABLE), key=b"00000", columns=columns, delete_row=delete_row, timeout_ms=50_000
    )


LARGEST: dict[str, Callable[[World], Iterator[Message]]] = {}
"""By path of a call: its largest requests, dearest in one way each."""


def _with_long_client_id(request: Any, _world: World) -> Message:
    return cast(Message, request(client_id="x" * 60_000))


def _largest(path: str, *make: Callable[[World], Message]) -> None:
    LARGEST[path] = lambda world: (each(world) for each in make)


_largest(
    _BROKER + "Produce",
    produce,
    lambda w: produce(w, broker_pb2.ACKS_NONE),
    produce_one_partition,
    produce_records,
    produce_rows,
)
_largest(
    _BROKER + "Fetch",
    fetch,
    lambda w: fetch(w, offset=10**9),
    lambda w: fetch(w, offset=10_000, max_wait_ms=50),
    lambda w: fetch(w, as_records=True),
)
_largest(_BROKER + "ListOffsets", list_offsets, lambda w: list_offsets(w, broker_pb2.OFFSET_SPEC_TIMESTAMP))
_largest(_BROKER + "DeleteRecords", delete_records)
_largest(_BROKER + "DeleteUnclaimedLogs", delete_unclaimed_logs)
_largest(_BROKER + "DescribeLogs", lambda _: broker_pb2.DescribeLogsRequest())
_largest(
    _TABLE + "GetRows",
    lambda _: tables_pb2.GetRowsRequest(read=_table_read(), keys=[b"%05d" % number for number in range(ROWS)]),
    lambda _: tables_pb2.GetRowsRequest(read=_table_read(), keys=[b"00000"] * 100),
)
_largest(_TABLE + "ScanRows", lambda _: tables_pb2.ScanRowsRequest(read=_table_read()))
_largest(_TABLE + "CountRows", lambda _: tables_pb2.CountRowsRequest(read=_table_read()))
_largest(_TABLE + "WriteRow", lambda _: write_row(delete_row=False), lambda _: write_row(delete_row=True))
_largest(_TABLE + "PurgeRows", lambda _: purge_rows(keys=[b"absent-%d" % number for number in range(10_000)]))
for _service in (_BROKER, _CLUSTER):
    _largest(
        _service + "GetMetadata",
        lambda _: cluster_pb2.GetMetadataRequest(),
        lambda w: cluster_pb2.GetMetadataRequest(topics=refs(w)),
    )
_largest(
    _CLUSTER + "CreateTopics", lambda w: new_topics(w, validate_only=True), lambda w: new_topics(w, validate_only=False)
)
_largest(_CLUSTER + "DeleteTopics", lambda w: cluster_pb2.DeleteTopicsRequest(topics=refs(w), validate_only=True))
_largest(_CLUSTER + "CreatePartitions", more_partitions)
_largest(_CLUSTER + "DescribeConfigs", lambda w: cluster_pb2.DescribeConfigsRequest(topics=refs(w)))
_largest(
    _CLUSTER + "AlterConfigs",
    lambda w: cluster_pb2.AlterConfigsRequest(
        topic=topics_pb2.TopicRef(name=w.wide), set={f"no-{number}": "1" for number in range(900)}
    ),
)
_largest(_CLUSTER + "DescribeCluster", lambda _: cluster_pb2.DescribeClusterRequest())
_largest(_CLUSTER + "InitProducerId", lambda _: cluster_pb2.InitProducerIdRequest())
_largest(_CLUSTER + "ReassignPartitions", reassign)
_largest(_CLUSTER + "ListReassignments", lambda w: cluster_pb2.ListReassignmentsRequest(topics=refs(w)))
_largest(_CLUSTER + "ElectLeaders", elect)
_largest(_CLUSTER + "DrainBroker", lambda _: cluster_pb2.DrainBrokerRequest(broker_id=77))
_largest(_CLUSTER + "DumpMetadata", lambda _: cluster_pb2.DumpMetadataRequest())
_largest(_GROUP + "Heartbeat", heartbeat)
_largest(_GROUP + "LeaveGroup", lambda _: groups_pb2.LeaveGroupRequest(group_id="joined", member_id=b"m" * 16))
_largest(
    _GROUP + "CommitOffsets",
    lambda w: groups_pb2.CommitOffsetsRequest(group_id=w.group, topics=offsets(w, "x" * 100)),
    lambda w: groups_pb2.CommitOffsetsRequest(
        group_id=w.group, topics=[groups_pb2.TopicOffsets(topic_id=b"0" * 16, partitions=offsets(w)[0].partitions)]
    ),
)
_largest(
    _GROUP + "FetchOffsets",
    lambda w: groups_pb2.FetchOffsetsRequest(group_id=w.group),
    lambda w: groups_pb2.FetchOffsetsRequest(
        group_id=w.group, topics=[groups_pb2.GroupTopicPartitions(topic_id=w.wide_id, partitions=w.numbers)]
    ),
)
_largest(_GROUP + "ListGroups", lambda _: groups_pb2.ListGroupsRequest())
_largest(_GROUP + "DescribeGroup", lambda w: groups_pb2.DescribeGroupRequest(group_id=w.group))
_largest(_GROUP + "DeleteGroups", lambda _: groups_pb2.DeleteGroupsRequest(group_ids=[f"no-{n}" for n in range(2_000)]))
_largest(
    "/headrace.v1.SessionService/OpenSession",
    lambda _: auth_pb2.OpenSessionRequest(api_key="hrk_" + "0" * 60_000),
    lambda _: auth_pb2.OpenSessionRequest(jwt="e30." * 15_000),
)
_largest("/headrace.v1.SessionService/WhoAmI", lambda _: auth_pb2.WhoAmIRequest())
for _method in auth_pb2.DESCRIPTOR.services_by_name["AuthService"].methods:
    _request = GetMessageClass(_method.input_type)
    # Strangers are refused before their requests are read.
    _largest(f"/headrace.v1.AuthService/{_method.name}", partial(_with_long_client_id, _request))
_largest("/headrace.v1.ProcessService/DescribeProcess", lambda _: process_pb2.DescribeProcessRequest())
_largest("/headrace.v1.ProcessService/SetLogLevel", lambda _: process_pb2.SetLogLevelRequest(level="no such level"))
for _name in ("Check", "Watch"):
    _largest(f"/grpc.health.v1.Health/{_name}", lambda _: health_pb2.HealthCheckRequest())
_largest("/grpc.health.v1.Health/List", lambda _: health_pb2.HealthListRequest())
_largest(
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    lambda _: reflection_pb2.ServerReflectionRequest(list_services=""),
)
