"""Without the calls that only Linux has, the log, the native protocol and the rest still pass their tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 600
TESTS = {
    "log": ["tests/unit/log"],
    "directory": ["tests/unit/embedded", "tests/unit/client/net", "tests/unit/devcluster"],
    "servers": [
        "tests/unit/common/test_native_server.py",
        *("-k", "not leaves_by_the_kernel and not sendfile"),
        "tests/unit/common/test_native_streams.py",
        "tests/unit/common/test_sqlite_metastore.py",
        "tests/unit/common/test_descriptors.py",
        "tests/unit/coordinator/schemas",
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("part", TESTS)
def test_the_tests_pass_without_the_calls_of_linux(part):
    """They run in a process from whose modules the calls are removed first."""
    arguments = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.without_linux",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*arguments, *TESTS[part]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
