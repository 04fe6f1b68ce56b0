"""When a Reader connects: a blocking one in its constructor, an asyncio one at `async with`."""

import headrace
import headrace.aio
import pytest
from headrace.wire.columns import encode_batch
from headrace.wire.errors import UnknownTopicError


def test_a_blocking_reader_fixes_its_range_in_its_constructor(fake_cluster):
    """Records that are appended between the constructor and `with` are behind the end; it needs no `with`."""
    fake_cluster.create_topic("t")
    fake_cluster.append("t", encode_batch([b"a"], base_timestamp_ms=5))
    reader = headrace.Reader("t", bootstrap_servers=fake_cluster.address)
    fake_cluster.append("t", encode_batch([b"late"], base_timestamp_ms=5))
    assert [record.value for record in reader] == [b"a"]
    reader.close()
    with reader, pytest.raises(headrace.ClosedError):
        reader.read()


def test_a_blocking_reader_of_an_unknown_topic_raises_in_its_constructor(fake_cluster):
    """The error does not wait for the first record."""
    with pytest.raises(UnknownTopicError):
        headrace.Reader("nothing", bootstrap_servers=fake_cluster.address)


async def test_an_asyncio_reader_that_is_not_open_says_how_to_open_it():
    """Its constructor cannot wait for a server, so reading before `async with` is refused."""
    with pytest.raises(headrace.ConfigError, match="async with"):
        await headrace.aio.Reader("t").read()
