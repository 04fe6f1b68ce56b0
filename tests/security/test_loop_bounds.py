"""No single call keeps an event loop for more than 100 ms: the largest request of every method, on a real cluster.

What is measured is processor time of the loop's thread, so that other work on the machine does not count. It takes
minutes; `make security` runs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from headrace.v1 import broker_pb2_grpc, cluster_pb2, cluster_pb2_grpc, groups_pb2, groups_pb2_grpc
from headrace_devcluster.cluster import LocalCluster, LocalClusterSpec
from headrace_server.methods import METHODS

from tests.security.conftest import Witness
from tests.security.largest import LARGEST, MANY_TOPICS, TABLE, TYPED, TYPED_COLUMNS, World, offsets, table_content
from tests.security.test_attacks import listener_of

LIMIT_SECONDS = 0.100
ROUNDS = 3
"""The least of this number of calls is judged: what a process does by itself now and then is not the call's."""
PROBE = Path(__file__).parent / "probe"
TABLE_CONFIG = {"cleanup_policy": "compact", "table": "yes"}
STREAMS = ("/ServerReflectionInfo",)

long = pytest.mark.skipif("HEADRACE_TEST_SECURITY" not in os.environ, reason="takes minutes; make security runs it")


class Probed:
    """A cluster whose loops are measured, and a world of 9,999 partitions on it."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.witness = Witness(cluster)
        many = tuple(f"one-{number}" for number in range(MANY_TOPICS))
        with grpc.insecure_channel(self.witness.address("coordinator")) as channel:
            wide = cluster_pb2.NewTopic(name="wide", partitions=9_999, replication_factor=1)
            wide_id = self._create(channel, [wide])[0].topic_id
            self._create(
                channel, [cluster_pb2.NewTopic(name=name, partitions=1, replication_factor=1) for name in many]
            )
            table = cluster_pb2.NewTopic(name=TABLE, partitions=1, replication_factor=1, configs=TABLE_CONFIG)
            self._create(channel, [table])
            rows = cluster_pb2.NewTopic(
                name=TYPED, partitions=1, replication_factor=1, configs={"columns": TYPED_COLUMNS}
            )
            self._create(channel, [rows])
            self.world = World("wide", wide_id, 9_999, many, "committed")
            request = groups_pb2.CommitOffsetsRequest(group_id=self.world.group, topics=offsets(self.world, "x" * 100))
            groups_pb2_grpc.GroupServiceStub(channel).CommitOffsets(request, timeout=110)

        with grpc.insecure_channel(self.witness.address("client")) as channel:
            self._fill_table(channel)

    @staticmethod
    def _fill_table(channel: grpc.Channel) -> None:
        stub, deadline = broker_pb2_grpc.BrokerServiceStub(channel), time.monotonic() + 300
        while stub.Produce(table_content(), timeout=60).topics[0].partitions[0].HasField("error"):
            assert time.monotonic() < deadline, "no broker leads the table"

    @staticmethod
    def _create(channel: grpc.Channel, topics: list[cluster_pb2.NewTopic]) -> list[cluster_pb2.CreateTopicResult]:
        request = cluster_pb2.CreateTopicsRequest(topics=topics, timeout_ms=100_000)
        answer = cluster_pb2_grpc.ClusterServiceStub(channel).CreateTopics(request, timeout=110)
        assert not any(each.HasField("error") for each in answer.topics)
        return list(answer.topics)

    def call(self, path: str, request: Message) -> tuple[str, float, str]:
        """Make a call; how it ended, and the longest stretch of a loop meanwhile, in seconds and by name."""
        files = list(self.directory.iterdir())
        before = {path: path.stat().st_size for path in files}
        with grpc.insecure_channel(
            self.witness.address(listener_of(path)), options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            data = request.SerializeToString()
            if path.endswith(STREAMS):
                call = channel.stream_stream(path)(iter([data]), timeout=60)
            else:
                call = channel.unary_stream(path)(data, timeout=60)
            try:
                for _answer in call:
                    if path.endswith("/Watch"):
                        call.cancel()
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
        self.witness.work(3)  # What the call left to be done is over, too.
        stretches = [(0.0, "-")]
        for path_of, size in before.items():
            for line in path_of.read_text()[size:].splitlines():
                seconds, _, name = line.partition(" ")
                stretches.append((float(seconds), name))
        return code, *max(stretches)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probed]:
    """The cluster; its processes are started with the probe."""
    directory = tmp_path_factory.mktemp("probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PROBE), *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("LOOP_PROBE_DIRECTORY", str(directory))
        with LocalCluster(LocalClusterSpec(brokers=1, coordinators=1)) as cluster:
            cluster.wait_until_healthy()
            probed = Probed(cluster, directory)
            yield probed
            probed.witness.check()
            probed.witness.producer.close()


def test_every_method_has_its_largest_request() -> None:
    """A new method needs a declaration of its most expensive calls."""
    assert set(LARGEST) == set(METHODS)


@long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LARGEST)
def test_the_largest_calls_leave_the_loop_to_others(
    probed: Probed, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The longest stretch of either process's loop is at most 100 ms of processor time."""
    found = []
    for request in LARGEST[path](probed.world):
        rounds = [probed.call(path, request) for _ in range(ROUNDS)]
        answered = [each for each in rounds if each[0] != "RESOURCE_EXHAUSTED"] or rounds
        found.append(min(answered, key=lambda each: each[1]))
    with capsys.disabled():
        for code, seconds, name in found:
            print(f"\n{path}: {seconds * 1000:.0f} ms ({name}), {code}", end="")
    assert all(seconds <= LIMIT_SECONDS for _, seconds, _ in found)
