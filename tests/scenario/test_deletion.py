"""Within an hour after `delete_retention_ms` no file of any replica has a deleted key or a value of it (H163)."""

from collections.abc import Iterator
from unittest import mock

import pytest
from headrace.partition.topic_configs import CONFIGS
from headrace_broker.settings import BrokerSettings

from tests.simulation import administration, broker
from tests.simulation.scenario import Scenario

HOUR_MS = 3_600_000
KEY = "a-person-with-a-right-to-be-forgotten"


SHIPPED = BrokerSettings(broker_id=1, data_dir="/data", listen="b1:7181", insecure=True)


@pytest.fixture(autouse=True)
def _at_shipped_intervals() -> Iterator[None]:
    with (
        mock.patch.object(broker, "COMPACTION_INTERVAL_MS", SHIPPED.compaction_interval_ms),
        mock.patch.object(administration, "FILE_DELETE_DELAY_MS", int(CONFIGS["file_delete_delay_ms"].default)),
    ):
        yield


def replicas_with(scenario: Scenario, text: bytes) -> list[int]:
    found = []
    for broker_id, node in scenario.cluster.brokers.items():
        disk = node.filesystem
        if any(text in disk.content(path) for path, file in disk._names.items() if file is not None):
            found.append(broker_id)
    return found


def test_a_deleted_key_is_in_no_file_an_hour_later() -> None:
    """The segment is closed by its age, compacted when its deletion is old, and removed; no other record comes."""
    scenario = Scenario(
        brokers=2,
        replicas=2,
        min_insync_replicas=1,
        compacts=True,
        forgets_deletions=True,
        retention_interval_ms=SHIPPED.retention_interval_ms,
    )
    scenario.pause_readers()
    scenario.produce(to=1, key=KEY)
    scenario.produce(to=1, key="another")
    scenario.produce(to=1, key=KEY, deletes=True)
    assert replicas_with(scenario, KEY.encode()) == [1, 2]
    scenario.run_for(HOUR_MS)
    assert replicas_with(scenario, KEY.encode()) == []
    assert replicas_with(scenario, b"another") == [1, 2]
    scenario.resume_readers()
    scenario.finish()
