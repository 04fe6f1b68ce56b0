"""What this release asks of its servers, one or more requests for every RPC, in an order in which they make sense.

`make golden` records them, with what a cluster answers, in `requests-<release>.json`; the next releases answer the
recorded bytes (`test_golden_requests.py`). A new RPC, or a new field that clients send, gets its request here. Ids that
a cluster draws are placeholders of the same length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import Message
from headrace.v1 import auth_pb2, broker_pb2, cluster_pb2, groups_pb2, handshake_pb2, process_pb2, topics_pb2
from headrace.wire.encoding import encode_batch
from headrace.wire.releases import CAPABILITIES, RELEASE

TOPIC_ID = b"golden topic id."
CLUSTER_ID = "golden-cluster-id-of-36-characters.."
MEMBER_ID = b"golden member id"
TOPIC, GROUP = "golden", "golden-group"
CLIENT_ID = "golden-client"
NOW_MS = 1_700_000_000_000
USER, ROLE, ISSUER = "golden-user", "golden-role", "golden-issuer"
UNKNOWN_API_KEY = f"hrk_{'A' * 12}_{'b' * 43}"
UNREGISTERED = 9
"""A broker id that no broker of the cluster has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call."""

    method: str
    """As in the path of the call: `headrace.v1.BrokerService/Fetch`."""
    note: str
    """What is asked for, in a few words; with the method it names the request."""
    request: Message


def all_requests() -> Iterator[Asked]:
    """In order."""
    handshake = handshake_pb2.Handshake(release=RELEASE, capabilities=CAPABILITIES)
    by_name, by_id = topics_pb2.TopicRef(name=TOPIC), topics_pb2.TopicRef(topic_id=TOPIC_ID)
    yield from _cluster(by_name, by_id, handshake)
    yield from _broker(by_name, by_id, handshake)
    yield from _groups(handshake)
    yield from _process()
    yield from _sessions()
    yield from _auth()
    names = [topics_pb2.TopicRef(name=TOPIC)]
    delete = cluster_pb2.DeleteTopicsRequest(client_id=CLIENT_ID, topics=names)
    yield Asked("headrace.v1.ClusterService/DeleteTopics", "by name", delete)


def _cluster(
    by_name: topics_pb2.TopicRef, by_id: topics_pb2.TopicRef, handshake: handshake_pb2.Handshake
) -> Iterator[Asked]:
    def ask(method: str, note: str, request: Message) -> Asked:
        return Asked(f"headrace.v1.ClusterService/{method}", note, request)

    new = cluster_pb2.NewTopic(
        name=TOPIC,
        configs={"min_insync_replicas": "1"},
        assignments=[cluster_pb2.ReplicaList(broker_ids=[1, 2]), cluster_pb2.ReplicaList(broker_ids=[1, 2])],
    )
    create = cluster_pb2.CreateTopicsRequest(client_id=CLIENT_ID, topics=[new], timeout_ms=20_000)
    yield ask("CreateTopics", "with its replicas", create)
    yield ask("CreateTopics", "one that is there", create)
    metadata = cluster_pb2.GetMetadataRequest(client_id=CLIENT_ID, topics=[by_name], handshake=handshake)
    yield ask("GetMetadata", "by name", metadata)
    yield ask("GetMetadata", "brokers", cluster_pb2.GetMetadataRequest(brokers_only=True, handshake=handshake))
    yield ask("DescribeCluster", "all", cluster_pb2.DescribeClusterRequest(client_id=CLIENT_ID))
    yield ask("DescribeConfigs", "of a topic", cluster_pb2.DescribeConfigsRequest(client_id=CLIENT_ID, topics=[by_id]))
    alter = cluster_pb2.AlterConfigsRequest(
        client_id=CLIENT_ID, topic=by_name, set={"retention_ms": "86400000"}, unset=["retention_bytes"]
    )
    yield ask("AlterConfigs", "set and unset", alter)
    grow = cluster_pb2.CreatePartitionsRequest(client_id=CLIENT_ID, topic=by_name, total_partitions=3)
    yield ask("CreatePartitions", "one more", grow)
    yield ask("InitProducerId", "a new one", cluster_pb2.InitProducerIdRequest(client_id=CLIENT_ID))
    move = cluster_pb2.PartitionReassignment(topic=by_name, partition=0, replicas=[1])
    reassign = cluster_pb2.ReassignPartitionsRequest(client_id=CLIENT_ID, partitions=[move], validate_only=True)
    yield ask("ReassignPartitions", "checked only", reassign)
    yield ask("ListReassignments", "all", cluster_pb2.ListReassignmentsRequest(client_id=CLIENT_ID))
    elect = cluster_pb2.ElectLeadersRequest(
        client_id=CLIENT_ID,
        type=cluster_pb2.ELECTION_TYPE_PREFERRED,
        topics=[cluster_pb2.TopicPartitions(topic=by_name, partitions=[0])],
    )
    yield ask("ElectLeaders", "the preferred", elect)
    yield ask("DrainBroker", "undrain", cluster_pb2.DrainBrokerRequest(client_id=CLIENT_ID, broker_id=2))
    yield ask("DumpMetadata", "topics", cluster_pb2.DumpMetadataRequest(client_id=CLIENT_ID, prefix="topics/"))


def _broker(
    by_name: topics_pb2.TopicRef, by_id: topics_pb2.TopicRef, handshake: handshake_pb2.Handshake
) -> Iterator[Asked]:
    def ask(method: str, note: str, request: Message) -> Asked:
        return Asked(f"headrace.v1.BrokerService/{method}", note, request)

    metadata = cluster_pb2.GetMetadataRequest(client_id=CLIENT_ID, topics=[by_name], handshake=handshake)
    yield ask("GetMetadata", "by name", metadata)
    batch = encode_batch([b"one", b"two"], base_timestamp_ms=NOW_MS)
    record = topics_pb2.Record(
        key=b"key",
        value=b"three",
        headers=[topics_pb2.RecordHeader(key="header", value=b"content")],
        timestamp_ms=NOW_MS,
    )
    for note, acks, topic, part in (
        ("a batch", broker_pb2.ACKS_LEADER, by_id, broker_pb2.PartitionProduce(partition=0, batches=[batch])),
        ("a record", broker_pb2.ACKS_ALL, by_name, broker_pb2.PartitionProduce(partition=0, records=[record])),
        ("to no partition", broker_pb2.ACKS_ALL, by_id, broker_pb2.PartitionProduce(partition=99, batches=[batch])),
    ):
        topics = [broker_pb2.TopicProduce(topic=topic, partitions=[part])]
        produce = broker_pb2.ProduceRequest(client_id=CLIENT_ID, acks=acks, timeout_ms=10_000, topics=topics)
        yield ask("Produce", note, produce)
    copy = broker_pb2.PartitionProduce(partition=0, batches=[batch], deletions_end=1)
    topics = [broker_pb2.TopicProduce(topic=by_id, partitions=[copy])]
    produce = broker_pb2.ProduceRequest(
        client_id=CLIENT_ID, acks=broker_pb2.ACKS_LEADER, timeout_ms=10_000, topics=topics, as_copies=True
    )
    yield ask("Produce", "copies, to a topic that is no mirror", produce)
    for note, as_records, part in (
        ("batches", False, broker_pb2.PartitionFetch(partition=0, max_bytes=1 << 20)),
        ("records", True, broker_pb2.PartitionFetch(partition=0, offset=1)),
        ("beyond the end", False, broker_pb2.PartitionFetch(partition=0, offset=1_000)),
        ("after an epoch", False, broker_pb2.PartitionFetch(partition=0, offset=3, last_epoch=0)),
    ):
        fetch = broker_pb2.FetchRequest(
            client_id=CLIENT_ID,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[broker_pb2.TopicFetch(topic=by_id, partitions=[part])],
            as_records=as_records,
        )
        yield ask("Fetch", note, fetch)
    specs = [
        broker_pb2.PartitionListOffsets(partition=0, spec=broker_pb2.OFFSET_SPEC_EARLIEST),
        broker_pb2.PartitionListOffsets(partition=0, spec=broker_pb2.OFFSET_SPEC_LATEST),
        broker_pb2.PartitionListOffsets(partition=0, spec=broker_pb2.OFFSET_SPEC_TIMESTAMP, timestamp_ms=NOW_MS),
        broker_pb2.PartitionListOffsets(partition=0, spec=broker_pb2.OFFSET_SPEC_APPEND_TIMESTAMP, timestamp_ms=1),
        broker_pb2.PartitionListOffsets(partition=0, spec=broker_pb2.OFFSET_SPEC_RECORD, offset=1),
    ]
    listed = [broker_pb2.TopicListOffsets(topic=by_name, partitions=specs)]
    yield ask("ListOffsets", "by every rule", broker_pb2.ListOffsetsRequest(client_id=CLIENT_ID, topics=listed))
    cut = broker_pb2.TopicDeleteRecords(
        topic=by_name, partitions=[broker_pb2.PartitionDeleteRecords(partition=0, before_offset=1)]
    )
    delete = broker_pb2.DeleteRecordsRequest(client_id=CLIENT_ID, timeout_ms=10_000, topics=[cut])
    yield ask("DeleteRecords", "the first", delete)
    unclaimed = broker_pb2.DeleteUnclaimedLogsRequest(client_id=CLIENT_ID, validate_only=True)
    yield ask("DeleteUnclaimedLogs", "all, validated", unclaimed)
    yield ask("DescribeLogs", "of a topic", broker_pb2.DescribeLogsRequest(client_id=CLIENT_ID, topics=[by_name]))


def _groups(handshake: handshake_pb2.Handshake) -> Iterator[Asked]:
    def ask(method: str, note: str, request: Message) -> Asked:
        return Asked(f"headrace.v1.GroupService/{method}", note, request)

    heartbeat = groups_pb2.HeartbeatRequest(
        client_id=CLIENT_ID,
        group_id=GROUP,
        member_id=MEMBER_ID,
        topics=[TOPIC],
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        host="golden-host",
        handshake=handshake,
    )
    heartbeat.owned.SetInParent()
    yield ask("Heartbeat", "join", heartbeat)
    yield ask("ListGroups", "all", groups_pb2.ListGroupsRequest(client_id=CLIENT_ID))
    yield ask("DescribeGroup", "one", groups_pb2.DescribeGroupRequest(client_id=CLIENT_ID, group_id=GROUP))
    offset = groups_pb2.PartitionOffset(partition=0, offset=2, leader_epoch=0, metadata="golden")
    offsets = [groups_pb2.TopicOffsets(topic_id=TOPIC_ID, name=TOPIC, partitions=[offset])]
    commit = groups_pb2.CommitOffsetsRequest(
        client_id=CLIENT_ID, group_id=GROUP, member_id=MEMBER_ID, member_epoch=1, topics=offsets, commit_number=1
    )
    yield ask("CommitOffsets", "of a member", commit)
    by_hand = groups_pb2.CommitOffsetsRequest(client_id=CLIENT_ID, group_id=f"{GROUP}-2", topics=offsets)
    yield ask("CommitOffsets", "without a member", by_hand)
    wanted = [groups_pb2.GroupTopicPartitions(topic_id=TOPIC_ID, name=TOPIC, partitions=[0, 1])]
    fetch = groups_pb2.FetchOffsetsRequest(client_id=CLIENT_ID, group_id=f"{GROUP}-2", topics=wanted)
    yield ask("FetchOffsets", "two partitions", fetch)
    leave = groups_pb2.LeaveGroupRequest(client_id=CLIENT_ID, group_id=GROUP, member_id=MEMBER_ID)
    yield ask("LeaveGroup", "a member", leave)
    delete = groups_pb2.DeleteGroupsRequest(client_id=CLIENT_ID, group_ids=[f"{GROUP}-2", "golden-none"])
    yield ask("DeleteGroups", "one that is there and one that is not", delete)


def _process() -> Iterator[Asked]:
    describe = process_pb2.DescribeProcessRequest(client_id=CLIENT_ID, measure_disk=True)
    yield Asked("headrace.v1.ProcessService/DescribeProcess", "all", describe)
    level = process_pb2.SetLogLevelRequest(client_id=CLIENT_ID, level="info", duration_ms=1_000)
    yield Asked("headrace.v1.ProcessService/SetLogLevel", "for a second", level)


def _sessions() -> Iterator[Asked]:
    def ask(method: str, note: str, request: Message) -> Asked:
        return Asked(f"headrace.v1.SessionService/{method}", note, request)

    yield ask("WhoAmI", "without an identity", auth_pb2.WhoAmIRequest(client_id=CLIENT_ID))
    unknown = auth_pb2.OpenSessionRequest(client_id=CLIENT_ID, api_key=UNKNOWN_API_KEY)
    yield ask("OpenSession", "an unknown API key", unknown)
    unknown = auth_pb2.OpenSessionRequest(client_id=CLIENT_ID, jwt="golden.no.token")
    yield ask("OpenSession", "a token of no issuer", unknown)
    certificate = auth_pb2.OpenSessionRequest(client_id=CLIENT_ID, certificate=auth_pb2.CertificateProof())
    yield ask("OpenSession", "a certificate that is not there", certificate)


def _auth() -> Iterator[Asked]:
    def ask(method: str, note: str, request: Message) -> Asked:
        return Asked(f"headrace.v1.AuthService/{method}", note, request)

    user = auth_pb2.User(name=USER, groups=["golden-group"], description="golden", certificate_names=["golden.example"])
    create = auth_pb2.PutUserRequest(client_id=CLIENT_ID, user=user, create_only=True)
    yield ask("PutUser", "a new one", create)
    yield ask("PutUser", "one that is there", create)
    disable = auth_pb2.User(name=USER, disabled=True)
    yield ask("PutUser", "disabled", auth_pb2.PutUserRequest(client_id=CLIENT_ID, user=disable))
    key = auth_pb2.CreateApiKeyRequest(client_id=CLIENT_ID, user=USER, description="golden", lifetime_ms=3_600_000)
    yield ask("CreateApiKey", "that expires", key)
    yield ask(
        "DeleteApiKey", "one that is not there", auth_pb2.DeleteApiKeyRequest(client_id=CLIENT_ID, key_id="A" * 12)
    )
    yield ask("ListUsers", "by name", auth_pb2.ListUsersRequest(client_id=CLIENT_ID, names=[USER]))
    role = auth_pb2.Role(name=ROLE, operations=["describe", "write"])
    yield ask("PutRole", "a new one", auth_pb2.PutRoleRequest(client_id=CLIENT_ID, role=role))
    yield ask("ListRoles", "all", auth_pb2.ListRolesRequest(client_id=CLIENT_ID))
    grant = auth_pb2.Grant(principal=USER, role=ROLE, resource="topic:golden.*", expires_ms=4_000_000_000_000)
    yield ask("PutGrant", "on a prefix", auth_pb2.PutGrantRequest(client_id=CLIENT_ID, grant=grant))
    grants = auth_pb2.ListGrantsRequest(client_id=CLIENT_ID, principal=USER, resource="topic:golden.eu")
    yield ask("ListGrants", "of a user on a topic", grants)
    for note, fields in (("of a user", {"user": "golden-other"}), ("of the caller", {})):
        check = auth_pb2.CheckAccessRequest(
            client_id=CLIENT_ID, operation="write", resource="topic:golden.eu", groups=["golden-group"], **fields
        )
        yield ask("CheckAccess", note, check)
    revoke = auth_pb2.DeleteGrantRequest(client_id=CLIENT_ID, principal=USER, role=ROLE, resource="topic:golden.*")
    yield ask("DeleteGrant", "one that is there", revoke)
    yield ask("DeleteRole", "one that is there", auth_pb2.DeleteRoleRequest(client_id=CLIENT_ID, name=ROLE))
    issuer = auth_pb2.Issuer(
        name=ISSUER,
        issuer="https://golden.example",
        audience="golden",
        keys_url="/golden/keys.json",
        algorithms=["ES256"],
        user_claim="email",
        groups_claim="groups",
    )
    yield ask("PutIssuer", "a new one", auth_pb2.PutIssuerRequest(client_id=CLIENT_ID, issuer=issuer))
    yield ask("ListIssuers", "all", auth_pb2.ListIssuersRequest(client_id=CLIENT_ID))
    yield ask("DeleteIssuer", "one that is there", auth_pb2.DeleteIssuerRequest(client_id=CLIENT_ID, name=ISSUER))
    quota = auth_pb2.Quota(
        user=USER,
        produce_bytes_per_second=10_000_000,
        fetch_bytes_per_second=20_000_000,
        requests_per_second=1_000,
        connections=10,
        changes_per_minute=60,
    )
    yield ask("PutQuota", "with every bound", auth_pb2.PutQuotaRequest(client_id=CLIENT_ID, quota=quota))
    yield ask("ListQuotas", "all", auth_pb2.ListQuotasRequest(client_id=CLIENT_ID))
    yield ask("DeleteQuota", "one that is there", auth_pb2.DeleteQuotaRequest(client_id=CLIENT_ID, user=USER))
    for posture in (auth_pb2.POSTURE_OPEN, auth_pb2.POSTURE_REQUIRED):
        note = auth_pb2.Posture.Name(posture).removeprefix("POSTURE_").lower()
        yield ask(
            "SetPosture",
            f"{note}, without an administrator",
            auth_pb2.SetPostureRequest(client_id=CLIENT_ID, posture=posture),
        )
    yield ask("DeleteUser", "one that is there", auth_pb2.DeleteUserRequest(client_id=CLIENT_ID, name=USER))
