"""A cluster that requires identities: what its users may do, what ends with a key, and what the audit log has."""

import contextlib
import json
import re
import shlex
import time
from pathlib import Path

import grpc
import pytest
from headrace import Admin, Consumer, NotAuthorizedError, Producer, Reader, UnauthenticatedError, UnknownTopicError
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.session import SdkClients
from headrace.cli.main import run
from headrace.v1 import auth_pb2, auth_pb2_grpc
from headrace.wire.ids import TopicPartition
from headrace.wire.topic_names import MIRRORS_TABLE
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec

from tests.integration.replicated import until

WAIT_SECONDS = 60.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "audit.md"


class Secured:
    """The cluster, its administrator, and users by name."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        with open(cluster.client_settings["api_key_file"]) as file:
            self.admin_key = file.read().strip()
        self.channel = grpc.insecure_channel(cluster.coordinators[0].address)
        self._auth = auth_pb2_grpc.AuthServiceStub(self.channel)
        self.admin = Admin(bootstrap_servers=self.servers, api_key=self.admin_key)
        self.keys = {}

    def ask(self, method, **fields):
        """Call a method of `AuthService` as the administrator."""
        request = getattr(auth_pb2, f"{method}Request")(**fields)
        metadata = (("authorization", f"Bearer {self.admin_key}"),)
        return getattr(self._auth, method)(request, timeout=10, metadata=metadata)

    def user(self, name, *grants):
        """Create a user with an API key and grants of (role, resource); return the settings of its clients."""
        self.ask("PutUser", user=auth_pb2.User(name=name))
        made = self.ask("CreateApiKey", user=name)
        self.keys[name] = made.api_key.key_id
        for role, resource in grants:
            self.ask("PutGrant", grant=auth_pb2.Grant(principal=name, role=role, resource=resource))
        until(lambda: everyone_granted(self.cluster, made.secret, len(grants)), "every server knows the user's grants")
        return {"bootstrap_servers": self.servers, "api_key": made.secret}

    def events(self, kind, method, resource, count=1):
        """Return events of the audit log about a method and a resource, once there are `count` of a kind."""
        deadline = time.monotonic() + WAIT_SECONDS
        of_kind = []
        while len(of_kind) < count and time.monotonic() < deadline:
            time.sleep(0.2)
            with (
                contextlib.suppress(UnknownTopicError),  # The controller creates the topic soon after its start.
                Reader("__audit", bootstrap_servers=self.servers, api_key=self.admin_key) as reader,
            ):
                found = [json.loads(record.value) for record in reader if resource.encode() in record.value]
                of_kind = [event for event in found if event["kind"] == kind and event["method"] == method]
        return of_kind

    def close(self):
        self.admin.close()
        self.channel.close()


def everyone_granted(cluster, api_key, count):
    """Return whether every server knows a key and as many grants of its user: what one server answered, the others see
    within two seconds.
    """
    bearer = (("authorization", f"Bearer {api_key}"),)
    with contextlib.ExitStack() as ends:
        for part in (*cluster.coordinators, *cluster.brokers):
            channel = ends.enter_context(grpc.insecure_channel(part.address))
            try:
                known = auth_pb2_grpc.SessionServiceStub(channel).WhoAmI(
                    auth_pb2.WhoAmIRequest(), timeout=20, metadata=bearer
                )
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
                return False
            if len(known.grants) < count:
                return False
    return True


@pytest.fixture(scope="module")
def secured():
    spec = LocalClusterSpec(
        brokers=2, coordinators=2, identity=True, coordinator_settings={"default_replication_factor": 1}
    )
    with LocalCluster(spec) as cluster:
        found = Secured(cluster)
        yield found
        found.close()


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_users_write_and_read_what_they_were_granted(secured, transport):
    """Over both protocols, and nothing else: neither another topic, nor a group, nor the cluster."""
    topic = f"orders-{transport}"
    secured.admin.create_topic(topic)
    secured.admin.create_topic(f"other-{transport}")
    shop = secured.user(f"shop-{transport}", ("writer", f"topic:{topic}")) | {"transport": transport}
    mail = secured.user(f"mail-{transport}", ("reader", f"topic:{topic}"), ("reader", "group:mail")) | {
        "transport": transport
    }
    with Producer(**shop) as producer:
        producer.send(topic, b"1").result(timeout=30)
        with pytest.raises(NotAuthorizedError, match=f"shop-{transport} has no grant of"):
            producer.send(f"other-{transport}", b"1").result(timeout=30)
    with Consumer(topic, group_id="mail", auto_offset_reset="earliest", **mail) as consumer:
        assert next(iter(consumer)).value == b"1"
        consumer.commit()
    with pytest.raises(NotAuthorizedError), Consumer(topic, group_id="shop", **mail) as consumer:
        next(iter(consumer))
    with Admin(**mail) as admin:
        assert topic in admin.list_topics()
        assert f"other-{transport}" not in admin.list_topics()
        with pytest.raises(NotAuthorizedError):
            admin.delete_topic(topic)


def test_nobody_without_an_identity_is_served(secured):
    """Also what lists topics, and with a key that is not known."""
    with pytest.raises(UnauthenticatedError), Admin(bootstrap_servers=secured.servers) as admin:
        admin.list_topics()
    unknown = "hrk_" + "0" * 12 + "_" + "0" * 43
    with pytest.raises(UnauthenticatedError), Admin(bootstrap_servers=secured.servers, api_key=unknown) as admin:
        admin.list_topics()


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_a_deleted_key_ends_an_open_reader(secured, transport):
    """A consumer that waits for records gets an error in their place."""
    topic = f"secrets-{transport}"
    secured.admin.create_topic(topic)
    name = f"spy-{transport}"
    settings = secured.user(name, ("reader", f"topic:{topic}"), ("reader", "group:spies")) | {"transport": transport}
    writer = secured.user(f"desk-{transport}", ("writer", f"topic:{topic}"))
    with (
        Producer(**writer) as producer,
        Consumer(topic, group_id="spies", auto_offset_reset="earliest", **settings) as consumer,
    ):
        producer.send(topic, b"before").result(timeout=30)
        assert next(iter(consumer)).value == b"before"
        secured.ask("DeleteApiKey", key_id=secured.keys[name])
        deadline = time.monotonic() + WAIT_SECONDS
        with pytest.raises(UnauthenticatedError):
            while time.monotonic() < deadline:
                producer.send(topic, b"after").result(timeout=30)
                consumer.poll(timeout=1.0)


def test_the_audit_log_says_who_deleted_a_topic(secured):
    """And who was refused, as one record a second."""
    secured.admin.create_topic("doomed")
    settings = secured.user("eve", ("monitor", "topic:doomed"))
    with Admin(**settings) as admin, pytest.raises(NotAuthorizedError):
        admin.delete_topic("doomed")
    secured.admin.delete_topic("doomed")
    (refusal,) = secured.events("refusal", "DeleteTopics", "topic:doomed")
    assert (refusal["user"], refusal["reason"]) == ("eve", "delete topic:doomed")
    acts = secured.events("act", "DeleteTopics", "topic:doomed", 2)
    assert [(act["user"], act["resources"]) for act in acts] == [
        ("eve", ["topic:doomed"]),
        ("admin", ["topic:doomed"]),
    ]


def test_the_query_of_the_page_says_who_deleted_a_topic(secured, capfd, monkeypatch):
    """And no other one, also if its name begins with the same."""
    for topic in ("orders", "orders.eu"):
        secured.admin.create_topic(topic)
        secured.admin.delete_topic(topic)
        assert secured.events("act", "DeleteTopics", f"topic:{topic}")
    command = re.search(r"^headrace (sql .+?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("HEADRACE_API_KEY", secured.admin_key)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", secured.servers)
    assert run([*shlex.split(command[1]), "--output", "json"], SdkClients()) == ExitCode.OK
    (found,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (found["who"], found["error"]) == ("admin", "")


@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_the_audit_log_says_who_reads_a_topic_that_asks_for_it(secured, transport):
    """Reads of one topic, as its setting says, and writes of another; by user, and nothing of the calls of servers."""
    read, written = f"payroll-{transport}", f"ledger-{transport}"
    secured.admin.create_topic(read, config={"audit": "read"})
    secured.admin.create_topic(written, config={"audit": "write"})
    name = f"clerk-{transport}"
    settings = secured.user(name, ("developer", "topic:*"))
    with Producer(**settings, transport=transport) as producer:
        for topic in (read, written):
            producer.send(topic, b"1").result(timeout=30)
    for topic in (read, written):
        with Reader(topic, **settings, transport=transport) as reader:
            assert [record.value for record in reader] == [b"1"]
    (reads, *_) = secured.events("data", "Fetch", f"topic:{read}")
    assert (reads["user"], reads["resources"], reads["identified_by"]) == (name, [f"topic:{read}"], "API key")
    (writes, *_) = secured.events("data", "Produce", f"topic:{written}")
    assert (writes["user"], writes["count"]) == (name, 1)
    with Reader("__audit", bootstrap_servers=secured.servers, api_key=secured.admin_key) as reader:
        found = [json.loads(record.value) for record in reader]
    data = {(each["method"], *each["resources"]) for each in found if each["kind"] == "data" and each["user"] == name}
    assert data == {("Fetch", f"topic:{read}"), ("Produce", f"topic:{written}")}


def test_the_doctor_says_who_may_call_and_whether_the_credential_is_accepted(secured, capfd, monkeypatch):
    """Each process says its posture. A caller without a credential is refused, with the next step."""
    arguments = ["doctor", "--output", "json", "--bootstrap-servers", secured.servers]
    assert run(arguments, SdkClients()) == ExitCode.DENIED
    first = json.loads(capfd.readouterr().out)["findings"][0]
    assert (first["status"], first["check"]) == ("failure", "credential")
    assert first["action"]
    monkeypatch.setenv("HEADRACE_API_KEY", secured.admin_key)
    run(arguments, SdkClients())
    printed = capfd.readouterr().out
    assert secured.admin_key not in printed
    found = [each for each in json.loads(printed)["findings"] if each["check"] in ("posture", "credential")]
    assert {each["status"] for each in found} == {"ok"}
    postures = {each["where"]: each["found"].partition(":")[0] for each in found if each["check"] == "posture"}
    assert postures == dict.fromkeys(("broker-1", "broker-2", "coordinator-a", "coordinator-b"), "required")
    assert "HEADRACE_API_KEY is accepted: user admin by API key" in {each["found"] for each in found}


def test_an_operator_is_not_told_that_a_broker_with_a_hidden_topic_can_be_removed(secured, capfd, monkeypatch):
    """The grant on the cluster does not reach the table of mirrors; what is shown to the operator is moved."""
    secured.admin.create_topic(MIRRORS_TABLE, 1)
    secured.admin.create_topic("shown", 2)
    for topic in (MIRRORS_TABLE, "shown"):
        secured.admin.reassign_partitions({TopicPartition(topic, 0): (2,)})
    until(lambda: secured.admin.describe_topic(MIRRORS_TABLE).partitions[0].replicas == (2,), "broker 2 has the table")
    operator = secured.user("olga", ("operator", "cluster"))

    def ended(api_key, *arguments):
        monkeypatch.setenv("HEADRACE_API_KEY", api_key)
        code = run([*arguments, "--bootstrap-servers", secured.servers], SdkClients())
        return code, capfd.readouterr().err

    hidden = "of the cluster are not shown to you"
    try:
        for command in (
            ("partition", "reassign", "--remove-broker", "2", "--watch", "--yes"),
            ("broker", "check-removal", "2"),
            ("broker", "drain", "2", "--wait"),
        ):
            code, said = ended(operator["api_key"], *command)
            assert (code, hidden in said) == (ExitCode.FAILED, True), (command, said)
        for command in (
            ("broker", "list"),
            ("broker", "describe", "2"),
            ("cluster", "balance", "--dry-run"),
            ("partition", "reassign", "--add-broker", "1", "--dry-run"),
            ("partition", "list", "--problem", "offline"),
        ):
            code, said = ended(operator["api_key"], *command)
            assert (code, hidden in said) == (ExitCode.OK, True), (command, said)
        code, said = ended(secured.admin_key, "broker", "check-removal", "2")
        assert (code, "broker 2 still holds" in said) == (ExitCode.FAILED, True), said
        assert hidden not in said
    finally:
        secured.admin.undrain_broker(2)
        for topic in (MIRRORS_TABLE, "shown"):
            secured.admin.delete_topic(topic)


def test_known_users_go_on_while_etcd_is_away():
    """With their sessions and with new ones; a key that no server knows may be too new."""
    with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1, identity=True)) as cluster:
        secured = Secured(cluster)
        secured.admin.create_topic("t")
        settings = secured.user("ada", ("developer", "topic:*"))
        with Producer(**settings) as producer:
            producer.send("t", b"1").result(timeout=30)
            cluster.etcd.kill()
            producer.send("t", b"2").result(timeout=30)
        with Producer(**settings) as producer:
            producer.send("t", b"3").result(timeout=30)
        secured.close()
