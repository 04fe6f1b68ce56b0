"""Fixtures of the container tier. Only `make test-containers` collects its tests: they need root and take minutes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.containers.engine import Engine
from tests.containers.images import STAND_INS
from tests.containers.inside import STATE
from tests.containers.records import API_KEY_FILE

if STATE not in os.environ:
    collect_ignore_glob = ["test_*.py"]

ALL_PROFILES = "*"
Figure = Callable[[str, object], None]


@pytest.fixture(scope="session")
def figure() -> Iterator[Figure]:
    """Note a figure; all are printed together in the end."""
    noted: list[str] = [f"in place of upstream's image: {each.service}, {each.differs}" for each in STAND_INS]
    yield lambda what, value: noted.append(f"{what}: {value}")
    print("\n" + "\n".join(noted), flush=True)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A Docker engine that has the images of docker-compose.yml, headrace's own from the real Dockerfile."""
    state = Path(os.environ[STATE])
    with Engine(state).running() as engine:
        for archive in sorted((state / "archives").glob("*.tar")):
            engine.docker("load", "--quiet", "--input", str(archive))
        yield engine


@pytest.fixture(scope="session")
def cluster(engine: Engine, figure: Figure) -> Engine:
    """The quickstart: `docker compose up -d --wait` on the file as it is; Compose itself gives up on a service."""
    begun = time.monotonic()
    engine.compose("up", "-d", "--wait")
    figure("docker compose up -d --wait", f"{time.monotonic() - begun:.1f} s")
    key_file = Path(os.environ[STATE]) / "admin.key"
    key_file.write_text(engine.compose("exec", "-T", "coordinator-1", "cat", "/etc/headrace-admin/api-key"))
    os.environ[API_KEY_FILE] = str(key_file)  # As the head of the file says.
    return engine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows how its containers were, and what they said last."""
    report = yield
    engine = getattr(item, "funcargs", {}).get("engine")
    if report.failed and isinstance(engine, Engine):
        for words in (("ps", "--all"), ("logs", "--no-color", "--tail=15")):
            report.sections.append((" ".join(words), engine.compose(*words, profile=ALL_PROFILES)))
    return report
