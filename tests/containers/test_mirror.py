"""docker-compose.mirror.yml as it is on a real engine: two clusters of three brokers, and a worker, by one command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.containers.conftest import Figure
from tests.containers.engine import Engine
from tests.containers.records import until

SECONDS = 60.0

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def compose(engine: Engine, figure: Figure) -> Iterator[Callable[..., str]]:
    """`docker compose` on the file, whose services are up."""
    compose = partial(engine.compose, file="docker-compose.mirror.yml")
    begun = time.monotonic()
    compose("up", "-d", "--wait")
    figure("docker compose -f docker-compose.mirror.yml up -d --wait", f"{time.monotonic() - begun:.1f} s")
    yield compose
    compose("down", "--volumes")


def test_what_is_sent_to_the_west_is_read_in_the_east(compose: Callable[..., str]) -> None:
    """By the commands at the head of the file; the east refuses producers until it is promoted."""
    west = ("exec", "-T", "west-coordinator")
    east = ("exec", "-T", "east-coordinator")
    compose(*west, "headrace", "topic", "create", "orders", "--partitions", "3")
    compose(*west, "sh", "-c", "printf 'one\\ntwo\\n' | headrace produce orders")

    def copied() -> bool:
        listed = compose(*east, "headrace", "topic", "list")
        return "orders" in listed and {"one", "two"} <= set(
            compose(*east, "headrace", "consume", "orders", "-e", "-f", "%s\\n").split()
        )

    until(copied, "the east has both records", SECONDS)
    assert "orders" in compose(*east, "sh", "-c", "headrace mirror status west || true")  # 5: no report yet
    refused = compose(*east, "sh", "-c", "printf 'three\\n' | headrace produce orders 2>&1 || true")
    assert "the topic is read only: mirror west" in refused
