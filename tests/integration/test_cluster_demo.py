"""The demo on a small load: it survives its kill, says so as JSON, sends exactly a file's lines, can be ended."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.children import running

COMMAND = [sys.executable, "-m", "examples.demo"]
WITHOUT_SPARK = [*COMMAND, "--no-spark"]


def demo(*arguments: str, command: list[str] = WITHOUT_SPARK) -> dict:
    done = subprocess.run([*command, "--json", *arguments], capture_output=True, text=True, check=False, timeout=290)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_a_killed_leader_costs_no_record() -> None:
    """20,000 page views and the machine's metrics go through a `kill -9` of a leader, nothing lost, nothing twice."""
    result = demo("--records", "20000")
    activity, metrics = result["topics"]
    assert result["ok"]
    assert (activity["records"], activity["lost"], activity["duplicated"]) == (20_000, 0, 0)
    assert metrics["records"] > 0
    assert (metrics["lost"], metrics["duplicated"]) == (0, 0)
    assert {activity["replicas"], metrics["replicas"]} == {3}
    failover = result["failover"]
    changed = {(change["topic"], change["partition"]): change for change in failover["partitions"]}
    written = changed["user-activity", 0]
    assert failover["broker_id"] not in {change["leader_id"] for change in changed.values()}
    assert all(change["leader_epoch"] > 0 for change in changed.values())
    assert written["seconds_without_leader"] > 0
    assert failover["copied_bytes"] > 0
    assert failover["seconds_until_in_sync"] > 0


def test_a_file_is_sent_line_by_line(tmp_path: Path) -> None:
    """With `--log` exactly the file's lines are sent, once each; a single broker is not killed."""
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(b"10.0.0.%d - GET /page/%d\n" % (n % 50, n) for n in range(3_000)))
    result = demo("--log", str(path), "--brokers", "1")
    assert result["ok"]
    assert result["failover"] is None
    assert result["table"] is None
    assert result["topics"][0]["records"] == 3_000
    assert result["topics"][0]["value_bytes"] == path.stat().st_size - 3_000


@pytest.mark.slow
def test_it_ends_with_a_table_and_three_answers(tmp_path: Path) -> None:
    """The load job finds all that was sent, says where the table lies, and the table answers; no process is killed with
    `--no-kill`, and every replica has everything."""
    table = tmp_path / "table"
    result = demo("--no-kill", "--records", "5000", "--table", str(table), command=COMMAND)
    loaded = result["table"]
    assert result["ok"]
    assert result["failover"] is None
    assert result["topics"][0]["replicas"] == 3
    assert (loaded["rows"], loaded["lag_records"], loaded["table"]) == (5_000, 0, str(table))
    assert list(table.glob("event_hour=2023-11-14-*/*.parquet"))
    by_hour, by_page, by_user = (answer["rows"] for answer in loaded["answers"])
    assert sum(views for _, views, *_ in by_hour) == 5_000
    assert len(by_page) == len(by_user) == 5


def test_ctrl_c_in_the_middle_of_the_failover_ends_everything(tmp_path: Path) -> None:
    """Interrupted while a broker is dead and writes wait for a leader, the demo ends and nothing is left."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    with running([*WITHOUT_SPARK, "--records", "50000"], stdout=subprocess.PIPE, text=True, env=environ) as demo:
        assert demo.stdout is not None
        assert any(line.startswith("kill -9") for line in demo.stdout)
        children = psutil.Process(demo.pid).children()
        assert len(list(tmp_path.glob("headrace-cluster-*"))) == 1
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    assert list(tmp_path.iterdir()) == []
