"""Frames of Polars, which is none of our dependencies, to and from typed topics. Needs PyPI; skipped without."""

import subprocess
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster

from tests.integration.test_cluster_sdk_versions import ONLY_WHEELS, ROOT, install


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has the SDK with Arrow and SQL, and Polars."""
    extras = f"headrace[arrow,sql] @ {(ROOT / 'sdk').as_uri()}"
    return install(tmp_path_factory.mktemp("polars") / "environment", *ONLY_WHEELS, extras, "polars")


@pytest.mark.slow
@pytest.mark.parametrize("transport", [pytest.param("native", marks=pytest.mark.native), "grpc"])
def test_frames_of_polars(python: Path, headrace_cluster: LocalCluster, topic_name: str, transport: str) -> None:
    """A frame makes the topic, is sent, and is read as it was; by columns and ranges, by SQL and as rows, too."""
    program = ROOT / "tests/integration/polars_alone.py"
    done = subprocess.run(
        [python, "-I", program, headrace_cluster.bootstrap_servers, topic_name, transport],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
