"""The SDK installed alone, with the oldest and with the newest versions that it promises, works on a real cluster.

Needs PyPI (or uv's cache); skipped, with the reason, without.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.prefix) / "bin" / "uv"
LOWEST = {"grpcio": "1.62.0", "protobuf": "4.25.8", "numpy": "1.26.0", "fastcrc": "0.5.0"}
ONLY_WHEELS = ["--only-binary", ":all:", "--no-binary", "headrace"]


def install(environment: Path, *arguments: str) -> Path:
    """An environment with the SDK in it; skips the test where the packages cannot be had."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True, cwd=environment.parent)
    python = environment / "bin" / "python"
    certificates = ["--system-certs"] if Path("/etc/ssl/certs").exists() else []
    command = [UV, "pip", "install", "--quiet", *certificates, "--python", python, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment.parent)
    if done.returncode != 0:
        if any(sign in done.stderr for sign in ("Failed to fetch", "error sending request", "dns error")):
            pytest.skip(f"the SDK's oldest and newest versions were NOT tested: no package index: {done.stderr}")
        pytest.fail(done.stderr)
    return python


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_the_sdk_alone_produces_and_reads(
    resolution: str, tmp_path: Path, headrace_cluster: LocalCluster, topic_name: str
) -> None:
    """Imports, encodes, decodes, produces, reads, without anything beyond its four dependencies."""
    if resolution == "lowest-direct" and sys.version_info >= (3, 12):
        pytest.skip("the SDK's oldest versions were NOT tested: grpcio 1.62.0 and the like have wheels up to 3.11/3.12")
    python = install(tmp_path / "environment", "--resolution", resolution, *ONLY_WHEELS, str(ROOT / "sdk"))
    done = subprocess.run(
        [python, "-I", ROOT / "tests/integration/sdk_alone.py", headrace_cluster.bootstrap_servers, topic_name],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    versions = dict(pair.split("=") for pair in done.stdout.split())
    if resolution == "lowest-direct":
        assert versions == LOWEST
