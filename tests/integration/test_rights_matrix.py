"""Every RPC of every service, gRPC and native, called with every built-in role: served exactly where the role has the
right that `methods.METHODS` states, on what the request names, and refused to callers without an identity that holds.
"""

import asyncio
import json
import socket
import time

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from headrace.v1 import auth_pb2, auth_pb2_grpc, broker_pb2_grpc, errors_pb2, topics_pb2
from headrace.v1 import broker_pb2 as broker
from headrace.v1 import cluster_pb2 as cluster
from headrace.v1 import groups_pb2 as groups
from headrace.v1 import process_pb2 as process
from headrace.v1 import tables_pb2 as tables
from headrace.wire.errors import from_rpc_error
from headrace.wire.frames import SERVER_KINDS, FrameReader, Kind, MethodCode, frame_head
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_devcluster.etcd_user import USER
from headrace_devcluster.session_check import find_refusal
from headrace_server.cluster_identity import read_or_create
from headrace_server.identity.api_keys import parse_api_key
from headrace_server.identity.callers import Proof
from headrace_server.identity.identification import SERVER_KEY
from headrace_server.identity.rights import ROLES, Operation, ResourceKind
from headrace_server.identity.session_tokens import sign_session
from headrace_server.internal_v1 import metadata_pb2
from headrace_server.metastore.etcd_login import EtcdLogin
from headrace_server.methods import METHODS

from tests.integration.metastore import connected
from tests.integration.replicated import until
from tests.security.test_identity_attacks import hello

SERVICES = {
    service.full_name: service
    for module in (auth_pb2, broker, cluster, groups, process, tables)
    for service in module.DESCRIPTOR.services_by_name.values()
}
BROKER, TABLES = "/headrace.v1.BrokerService/", "/headrace.v1.TableService/"
NATIVE = {
    MethodCode.PRODUCE: f"{BROKER}Produce",
    MethodCode.FETCH: f"{BROKER}Fetch",
    MethodCode.LIST_OFFSETS: f"{BROKER}ListOffsets",
    MethodCode.GET_ROWS: f"{TABLES}GetRows",
    MethodCode.WRITE_ROW: f"{TABLES}WriteRow",
}
"""Methods of the native protocol for clients."""
HOUR_MS = 3_600_000
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
    "describe topic": "ListOffsets GetMetadata DescribeConfigs DescribeLogs",
    "read topic": "Fetch GetRows ScanRows CountRows",
    "write topic": "Produce WriteRow",
    "create topic": "CreateTopics",
    "delete topic": "DeleteRecords DeleteTopics PurgeRows",
    "alter topic": "CreatePartitions AlterConfigs",
    "describe group": "FetchOffsets ListGroups DescribeGroup",
    "read group": "Heartbeat LeaveGroup CommitOffsets",
    "delete group": "DeleteGroups",
    "describe cluster": "DescribeCluster ListReassignments DescribeProcess",
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
    "DescribeLogs": broker.DescribeLogsRequest(topics=[TOPIC]),
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
        self._native_address = json.loads(running.brokers[0].ready_file.read_text())["native_address"]
        self.channels = {
            "coordinator": grpc.insecure_channel(running.coordinators[0].address),
            "broker": grpc.insecure_channel(running.brokers[0].address),
        }
        key = running.client_settings["api_key_file"]
        with open(key) as file:
            self.admin = file.read().strip()
        self._auth = auth_pb2_grpc.AuthServiceStub(self.channels["coordinator"])
        self._as_admin = {"timeout": 10, "metadata": metadata_of(self.admin)}
        self.keys = {"": "", **{role: self.make_user(role, (role, "cluster")) for role in ROLES}}
        """API keys of users by their role on the cluster."""
        named = ("topic:matrix", "group:matrix", "group:absent")
        others = ("topic:matrix2", "topic:matri", "group:matrix2", "group:matri", "schema:*", "topic:x*", "x*")
        self.others = {
            "neighbour": self.make_user("neighbour", *(("developer", other) for other in others)),
            "tenant": self.make_user("tenant", *(("developer", kind) for kind in ("topic:*", "group:*", "schema:*"))),
        }
        """Those of a user with rights to other topics and groups, and of one with rights to all but the cluster."""
        for operation in Operation:
            name = operation.name.lower()
            self.others[name] = self.make_user(f"only-{name}", *((name, resource) for resource in named))
        self.ended = asyncio.run(self._make_ended(running))
        """Credentials that do not hold, of an administrator."""
        last = self.make_user("last")
        addresses = [running.coordinators[0].address, running.brokers[0].address]
        until(lambda: not find_refusal(addresses, None, last), "the broker knows all users")

    def make_user(self, name, *grants, **fields):
        """Create a user with grants of (role, resource), and return its API key."""
        self._auth.PutUser(auth_pb2.PutUserRequest(user=auth_pb2.User(name=name)), **self._as_admin)
        request = auth_pb2.CreateApiKeyRequest(user=name, **fields)
        secret = self._auth.CreateApiKey(request, **self._as_admin).secret
        for role, resource in grants:
            grant = auth_pb2.Grant(principal=name, role=role, resource=resource)
            self._auth.PutGrant(auth_pb2.PutGrantRequest(grant=grant), **self._as_admin)
        return secret

    async def _make_ended(self, running):
        """Return credentials that have ended, begin later, or were signed by a key of another cluster."""
        expired = self.make_user("expired", ("admin", "cluster"), lifetime_ms=1)
        deleted = self.make_user("deleted", ("admin", "cluster"))
        request = auth_pb2.DeleteApiKeyRequest(key_id=parse_api_key(deleted).key_id)
        self._auth.DeleteApiKey(request, **self._as_admin)
        login = EtcdLogin(USER, str(running.directory / "etcd.password"))
        async with connected(running.etcd.endpoint, login=login) as metastore:
            identity = await read_or_create(metastore, "headrace", "unused")
            (found, *_) = (await metastore.range(identity.keyspace.signing_key_prefix())).key_values
            signing = metadata_pb2.SigningKey.FromString(found.value)
        now_ms = round(time.time() * 1000)
        key_id = parse_api_key(self.admin).key_id

        def session(begins_ms, proof=Proof.API_KEY, *, by=signing.key_id, secret=signing.secret):
            """Return the token of an administrator's session of an hour."""
            claims = metadata_pb2.SessionClaims(
                user="admin",
                proof=proof,
                credential=key_id,
                issued_ms=now_ms + begins_ms,
                expires_ms=now_ms + begins_ms + HOUR_MS,
            )
            return sign_session(claims, by, secret)

        return {
            "expired key": expired,
            "deleted key": deleted,
            "expired session": session(-2 * HOUR_MS),
            "later session": session(HOUR_MS),
            "another cluster's session": session(0, secret=bytes(32)),
            "another cluster's server": session(0, Proof.SERVER, by=SERVER_KEY, secret=bytes(32)),
            "a server by a session's key": session(0, Proof.SERVER),
        }

    def codes(self, path, key):
        """Return the codes of the errors of one call over gRPC."""
        service, name = path[1:].split("/")
        server = "broker" if service.endswith(("BrokerService", "TableService")) else "coordinator"
        request_type, response_type = types_of(path)
        request = REQUESTS.get(name) or request_type()
        call = self.channels[server].unary_stream(path, request_type.SerializeToString, response_type.FromString)
        try:
            answers = list(call(request, timeout=20, metadata=metadata_of(key)))
        except grpc.RpcError as error:
            return {from_rpc_error(error).code}
        return {code for answer in answers for code in errors_in(answer)}

    def describe_logs(self, key):
        """Return the response to a DescribeLogs of the topic."""
        stub = broker_pb2_grpc.BrokerServiceStub(self.channels["broker"])
        return stub.DescribeLogs(REQUESTS["DescribeLogs"], timeout=20, metadata=metadata_of(key))

    def native_codes(self, method, key):
        """Return the codes of the errors of one call over the native protocol."""
        message = REQUESTS[NATIVE[method].rpartition("/")[2]].SerializeToString()
        request = frame_head(Kind.REQUEST, message, method=method, correlation=1, timeout_ms=20_000)
        host, _, port = self._native_address.rpartition(":")
        reader = FrameReader(SERVER_KINDS, lambda _: True)
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(hello(key) + request)
            while count := connection.recv_into(reader.buffer()):
                reader.received(count)
                while (frame := reader.next_frame()) is not None:
                    if frame.header.kind == Kind.ERROR:
                        return {errors_pb2.ErrorDetail.FromString(frame.message).code}
                    if frame.header.kind == Kind.ANSWER:
                        return set(errors_in(types_of(NATIVE[method])[1].FromString(frame.message)))
        raise AssertionError("no answer")

    def close(self):
        for channel in self.channels.values():
            channel.close()


def types_of(path):
    """Return the types of the request and the response of a method."""
    service, name = path[1:].split("/")
    method = SERVICES[service].methods_by_name[name]
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)


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
    for role, key in called.keys.items():
        codes = called.codes(path, key)
        assert is_allowed(METHODS[path], role) != bool(codes & REFUSED), (role, codes)


@pytest.mark.native
@pytest.mark.parametrize("method", NATIVE, ids=lambda method: method.name)
def test_a_native_method_is_served_to_the_roles_that_have_its_right(called, method):
    """The same rows as over gRPC, with a credential in the Hello."""
    row = METHODS[NATIVE[method]]
    for role, key in called.keys.items():
        codes = called.native_codes(method, key)
        assert is_allowed(row, role) != bool(codes & REFUSED), (role, codes)
    operation = row.right.operation.name.lower()
    assert called.native_codes(method, called.others["neighbour"]) & REFUSED
    assert not called.native_codes(method, called.others[operation]) & REFUSED
    for what, key in called.ended.items():
        assert called.native_codes(method, key) == {errors_pb2.ERROR_CODE_UNAUTHENTICATED}, what


def test_every_native_method_is_here():
    """That of followers has a listener and a proof of its own."""
    assert set(MethodCode) == {*NATIVE, MethodCode.REPLICA_FETCH}


@pytest.mark.parametrize("path", [path for path, row in METHODS.items() if row.right is not None])
def test_a_right_to_something_else_is_none(called, path):
    """All rights to other topics and groups, also with longer and shorter names, or to all of them but the cluster. The
    one right, to the one topic or group, is enough.
    """
    right = METHODS[path].right
    if right.kind is ResourceKind.CLUSTER:
        assert called.codes(path, called.others["tenant"]) & REFUSED
        return
    if not path.endswith("/ListGroups"):  # It leaves out what the caller may not see.
        assert called.codes(path, called.others["neighbour"]) & REFUSED
    assert not called.codes(path, called.others[right.operation.name.lower()]) & REFUSED


def test_the_logs_of_all_topics_and_the_disk_are_those_of_the_cluster(called, monkeypatch):
    """A right to all topics is not enough."""
    path = "/headrace.v1.BrokerService/DescribeLogs"
    created = cluster.CreateTopicsRequest(topics=[cluster.NewTopic(name="logs", partitions=1, replication_factor=1)])
    monkeypatch.setitem(REQUESTS, "CreateTopics", created)
    monkeypatch.setitem(REQUESTS, "DescribeLogs", broker.DescribeLogsRequest(topics=[topics_pb2.TopicRef(name="logs")]))
    tenant, monitor = called.others["tenant"], called.keys["monitor"]
    assert not called.codes("/headrace.v1.ClusterService/CreateTopics", tenant)
    until(lambda: not called.codes(path, tenant), "the broker knows the topic")
    assert called.describe_logs(tenant).disk_total_bytes == 0
    assert called.describe_logs(monitor).disk_total_bytes > 0
    monkeypatch.setitem(REQUESTS, "DescribeLogs", broker.DescribeLogsRequest())
    assert called.codes(path, tenant) & REFUSED
    assert not called.codes(path, monitor)


@pytest.mark.parametrize("path", [path for path in METHODS if path.startswith("/headrace.")])
def test_a_credential_that_does_not_hold_is_refused_by_every_method(called, path):
    """Whatever its user may do, and also where no credential is needed."""
    for what, key in called.ended.items():
        assert called.codes(path, key) == {errors_pb2.ERROR_CODE_UNAUTHENTICATED}, what


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
