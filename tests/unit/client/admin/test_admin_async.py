"""The asyncio `Admin` on a fake cluster."""

import os

import headrace.aio
import pytest

PARTITION = headrace.TopicPartition("t", 0)


async def test_admin_describes_topics(fake_cluster):
    """Topics, partitions and offsets are those of the cluster."""
    fake_cluster.create_topic("t", 3)
    async with headrace.aio.Admin(bootstrap_servers=fake_cluster.address) as admin:
        assert await admin.list_topics() == ["t"]
        assert len((await admin.describe_topic("t")).partitions) == 3
        assert (await admin.list_offsets("t"))[PARTITION].offset == 0


async def test_admin_has_no_mirrors_of_a_directory(tmp_path):
    """Mirrors are of a cluster: the error is that of `Mirrors`."""
    async with headrace.aio.Admin(bootstrap_servers=f"dir:{tmp_path}") as admin:
        with pytest.raises(headrace.ConfigError, match="mirrors are of a cluster"):
            _ = admin.mirrors


async def test_admin_closes_its_mirrors():
    """They are closed with it, and made for an open one only."""
    admin = headrace.aio.Admin(bootstrap_servers="localhost:1")
    mirrors = admin.mirrors
    assert admin.mirrors is mirrors
    await admin.close()
    with pytest.raises(headrace.ClosedError):
        await mirrors.list_mirrors()
    other = headrace.aio.Admin(bootstrap_servers="localhost:1")
    await other.close()
    with pytest.raises(headrace.ClosedError):
        _ = other.mirrors


async def test_admin_closed_twice_refuses_calls():
    """A second `close` does nothing, and a call after it raises `ClosedError` without a server."""
    admin = headrace.aio.Admin(bootstrap_servers="localhost:1")
    await admin.close()
    await admin.close()
    with pytest.raises(headrace.ClosedError):
        await admin.list_topics()


def last_words(child, reading):
    """Wait for the child and return what it wrote."""
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return said.read()


async def test_admin_in_a_forked_child_raises(fake_cluster):
    """Connections do not survive a fork: the child must make its own `Admin`, the parent's stays usable."""
    fake_cluster.create_topic("t")
    async with headrace.aio.Admin(bootstrap_servers=fake_cluster.address) as admin:
        await admin.list_topics()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                await admin.close()
                await admin.list_topics()
            except headrace.ForkedError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        assert "Create the Admin in the child" in last_words(child, reading)
        assert await admin.list_topics() == ["t"]
