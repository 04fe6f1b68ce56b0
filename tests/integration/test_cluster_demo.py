"""The demo on a small load: it passes, says so as JSON, and sends exactly a file's lines."""

import json
import subprocess
import sys
from pathlib import Path


def demo(*arguments: str) -> dict:
    command = [sys.executable, "-m", "headrace_devcluster", "demo", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_made_up_page_views_arrive() -> None:
    """20,000 page views and the machine's metrics go through, nothing lost, nothing twice."""
    result = demo("--records", "20000")
    activity, metrics = result["topics"]
    assert result["ok"]
    assert (activity["records"], activity["lost"], activity["duplicated"]) == (20_000, 0, 0)
    assert metrics["records"] > 0
    assert (metrics["lost"], metrics["duplicated"]) == (0, 0)


def test_a_file_is_sent_line_by_line(tmp_path: Path) -> None:
    """With `--log` exactly the file's lines are sent, once each."""
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(b"10.0.0.%d - GET /page/%d\n" % (n % 50, n) for n in range(3_000)))
    result = demo("--log", str(path), "--brokers", "1")
    assert result["ok"]
    assert result["topics"][0]["records"] == 3_000
    assert result["topics"][0]["value_bytes"] == path.stat().st_size - 3_000
