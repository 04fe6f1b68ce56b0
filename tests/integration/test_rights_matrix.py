"""Every RPC of every service, gRPC and native, called with every built-in role: served exactly where the role has the
right that `methods.METHODS` states, and refused to callers without an identity."""

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from headrace.v1 import auth_pb2, auth_pb2_grpc, errors_pb2, topics_pb2
from headrace.v1 import broker_pb2 as broker
from headrace.v1 import cluster_pb2 as cluster
from headrace.v1 import groups_pb2 as groups
from headrace.v1 import process_pb2 as process
from headrace.v1 import tables_pb2 as tables
from headrace.wire.errors import from_rpc_error
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.identity.rights import ROLES, Operation
from headrace_server.methods import METHODS

SERVICES = {
    service.full_name: service
    for module in (auth_pb2, broker, cluster, groups, process, tables)
    for service in module.DESCRIPTOR.services_by_name.values()
}
REFUSED = {errors_pb2.ERROR_CODE_NOT_AUTHORIZED, errors_pb2.ERROR_CODE_UNAUTHENTICATED}
TOPIC = topics_pb2.TopicRef(name="matrix")
READ = tables.TableRead(table=TOPIC, timeout_ms=1_000)
GROUP = "matrix"
OPEN = {
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/headrace.v1.SessionService/OpenSession",
    "/headrace.v1.SessionService/WhoAmI",
}
"""Served to everybody."""
OWN = {"/headrace.v1.AuthService/CreateApiKey", "/headrace.v1.AuthService/DeleteApiKey"}
"""Served to those who ask for themselves, and to administrators."""
RIGHTS = {
    "describe topic": "ListOffsets GetMetadata DescribeConfigs",
    "read topic": "Fetch GetRows ScanRows CountRows",
    "write topic": "Produce WriteRow",
    "create topic": "CreateTopics",
    "delete topic": "DeleteRecords DeleteTopics PurgeRows",
    "alter topic": "CreatePartitions AlterConfigs",
    "describe group": "FetchOffsets ListGroups DescribeGroup",
    "read group": "Heartbeat LeaveGroup CommitOffsets",
    "delete group": "DeleteGroups",
    "describe cluster": "DescribeLogs DescribeCluster ListReassignments DescribeProcess",
    "operate cluster": "ReassignPartitions ElectLeaders DrainBroker SetLogLevel",
    "admin cluster": "DeleteUnclaimedLogs DumpMetadata PutUser DeleteUser ListUsers PutGrant DeleteGrant ListGrants"
    " PutRole DeleteRole PutIssuer DeleteIssuer ListIssuers PutQuota DeleteQuota ListQuotas SetPosture",
}
"""Methods by the right that they require, which `METHODS` must state: a row with a lesser right would otherwise be what
its own test expects.
"""
NO_ACTS = (
    "List Describe Get Fetch Produce ScanRows CountRows WriteRow InitProducerId Heartbeat LeaveGroup"
    " CommitOffsets OpenSession WhoAmI CheckAccess"
)
"""Beginnings of the names of methods that change nothing which an administrator set."""
REQUESTS = {
    "Produce": broker.ProduceRequest(
        acks=broker.ACKS_LEADER, timeout_ms=1_000, topics=[broker.TopicProduce(topic=TOPIC, partitions=[{}])]
    ),
    "Fetch": broker.FetchRequest(topics=[broker.TopicFetch(topic=TOPIC, partitions=[{}])]),
    "ListOffsets": broker.ListOffsetsRequest(topics=[broker.TopicListOffsets(topic=TOPIC, partitions=[{}])]),
    "DeleteRecords": broker.DeleteRecordsRequest(
        timeout_ms=1_000, topics=[broker.TopicDeleteRecords(topic=TOPIC, partitions=[{}])]
    ),
    "GetRows": tables.GetRowsRequest(read=READ, keys=[b"k"]),
    "ScanRows": tables.ScanRowsRequest(read=READ),
    "CountRows": tables.CountRowsRequest(read=READ),
    "WriteRow": tables.WriteRowRequest(table=TOPIC, key=b"k", delete_row=True, timeout_ms=1_000),
    "PurgeRows": tables.PurgeRowsRequest(table=TOPIC, keys=[b"absent"], timeout_ms=1_000),
    "GetMetadata": cluster.GetMetadataRequest(topics=[TOPIC]),
    "CreateTopics": cluster.CreateTopicsRequest(topics=[cluster.NewTopic(name="matrix")], validate_only=True),
    "DeleteTopics": cluster.DeleteTopicsRequest(topics=[TOPIC], validate_only=True),
    "CreatePartitions": cluster.CreatePartitionsRequest(topic=TOPIC, total_partitions=2, validate_only=True),
    "DescribeConfigs": cluster.DescribeConfigsRequest(topics=[TOPIC]),
    "AlterConfigs": cluster.AlterConfigsRequest(topic=TOPIC, set={"retention_ms": "1000"}, validate_only=True),
    "Heartbeat": groups.HeartbeatRequest(group_id=GROUP),
    "LeaveGroup": groups.LeaveGroupRequest(group_id=GROUP),
    "CommitOffsets": groups.CommitOffsetsRequest(group_id=GROUP),
    "FetchOffsets": groups.FetchOffsetsRequest(group_id=GROUP),
    "DescribeGroup": groups.DescribeGroupRequest(group_id=GROUP),
    "DeleteGroups": groups.DeleteGroupsRequest(group_ids=["absent"]),
}
"""Requests that name a topic or group. Others are empty, which a method may find invalid after it is allowed."""


def errors_in(message):
    """Yield the codes of all errors in a response, at any depth."""
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            if isinstance(each, errors_pb2.ErrorDetail):
                yield each.code
            elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
                yield from errors_in(each)


class Called:
    """A cluster that requires identities, with one user a role, and its gRPC services by path."""

    def __init__(self, running):
        self.channels = {
            "coordinator": grpc.insecure_channel(running.coordinators[0].address),
            "broker": grpc.insecure_channel(running.brokers[0].address),
        }
        key = running.client_settings["api_key_file"]
        with open(key) as file:
            self.admin = file.read().strip()
        auth = auth_pb2_grpc.AuthServiceStub(self.channels["coordinator"])
        as_admin = {"timeout": 10, "metadata": metadata_of(self.admin)}
        self.keys = {"": ""}
        for role in ROLES:
            auth.PutUser(auth_pb2.PutUserRequest(user=auth_pb2.User(name=role)), **as_admin)
            made = auth.CreateApiKey(auth_pb2.CreateApiKeyRequest(user=role), **as_admin)
            self.keys[role] = made.secret
            grant = auth_pb2.Grant(principal=role, role=role, resource="cluster")
            auth.PutGrant(auth_pb2.PutGrantRequest(grant=grant), **as_admin)

    def codes(self, server, path, request_type, response_type, key):
        """Return the codes of the errors of one call."""
        request = REQUESTS.get(path.rpartition("/")[2]) or request_type()
        call = self.channels[server].unary_stream(path, request_type.SerializeToString, response_type.FromString)
        try:
            answers = list(call(request, timeout=20, metadata=metadata_of(key)))
        except grpc.RpcError as error:
            return {from_rpc_error(error).code}
        return {code for answer in answers for code in errors_in(answer)}

    def close(self):
        for channel in self.channels.values():
            channel.close()


def metadata_of(key):
    return (("authorization", f"Bearer {key}"),) if key else ()


@pytest.fixture(scope="module")
def called():
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, identity=True)) as running:
        found = Called(running)
        yield found
        found.close()


def is_allowed(row, role):
    if role == "":
        return not row.needs_identity
    return row.right is None or bool(ROLES[role] & row.right.operation)


@pytest.mark.parametrize("path", [path for path in METHODS if path.startswith("/headrace.") and path not in OWN])
def test_a_method_is_served_to_the_roles_that_have_its_right(called, path):
    """`GetMetadata` of a server is on two services. An error of another kind means that the right was there."""
    service, name = path[1:].split("/")
    method = SERVICES[service].methods_by_name[name]
    request_type, response_type = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    server = "broker" if service.endswith(("BrokerService", "TableService")) else "coordinator"
    for role, key in called.keys.items():
        codes = called.codes(server, path, request_type, response_type, key)
        assert is_allowed(METHODS[path], role) != bool(codes & REFUSED), (role, codes)


def test_every_method_has_a_row_that_says_who_may_call_it():
    """What is open to everybody is listed here, so that a new row cannot be open by mistake."""
    assert {path for path, row in METHODS.items() if not row.needs_identity} == OPEN
    with_right = {path for path, row in METHODS.items() if row.right is not None}
    without = set(METHODS) - with_right - OPEN
    assert without == {
        "/headrace.v1.ClusterService/InitProducerId",
        *OWN,
        "/headrace.v1.AuthService/CheckAccess",
        "/headrace.v1.AuthService/ListRoles",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
    assert {row.right.operation for row in METHODS.values() if row.right} == set(Operation)
    stated = {}
    for path, row in METHODS.items():
        if row.right is not None:
            right = f"{row.right.operation.name.lower()} {row.right.kind.value}"
            stated.setdefault(right, set()).add(path.rpartition("/")[2])
    assert stated == {right: set(names.split()) for right, names in RIGHTS.items()}


def test_what_is_about_identity_is_required_and_what_changes_something_is_an_act():
    """Whatever the posture, and in the audit log."""
    about = {path for path, row in METHODS.items() if row.is_about_identity}
    assert about == {path for path in METHODS if "/headrace.v1.AuthService/" in path}
    changing = {
        path
        for path in METHODS
        if path.startswith("/headrace.") and not path.rpartition("/")[2].startswith(tuple(NO_ACTS.split()))
    }
    assert {path for path, row in METHODS.items() if row.is_act} == changing
