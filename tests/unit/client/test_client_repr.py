"""What an interactive session shows of clients and of what they return."""

import headrace
import headrace.aio
from headrace.client.admin.rpc import PartitionDescription, TopicDescription


async def test_a_client_shows_what_it_works_on(fake_cluster):
    """Class, topics, group and servers; a closed one too."""
    fake_cluster.create_topic("clicks", 1)
    at = fake_cluster.address
    for module in (headrace, headrace.aio):
        assert (
            repr(module.Producer(bootstrap_servers=at))
            == f"<Producer client_id=headrace-python bootstrap_servers={at}>"
        )
        assert repr(module.Admin(bootstrap_servers=[at, "b:1"])) == f"<Admin bootstrap_servers={at},b:1>"
    with headrace.Reader("clicks", bootstrap_servers=at) as reader:
        pass
    assert repr(reader) == f"<Reader topic=clicks bootstrap_servers={at}>"
    with headrace.Consumer("clicks", bootstrap_servers=at) as consumer:
        assert repr(consumer) == f"<Consumer topics=clicks bootstrap_servers={at}>"
    async_consumer = headrace.aio.Consumer("clicks", "views", group_id="billing", bootstrap_servers=at)
    assert repr(async_consumer) == f"<Consumer topics=clicks,views group_id=billing bootstrap_servers={at}>"


def test_a_batch_future_shows_its_records(fake_cluster):
    """How many, and whether all of them have ended."""
    fake_cluster.create_topic("clicks", 1)
    with headrace.Producer(bootstrap_servers=fake_cluster.address) as producer:
        future = producer.send_many("clicks", [b"a", b"b"])
    assert repr(future) == "BatchFuture(2 records, done)"


def test_a_topic_fits_on_a_line():
    """Its partitions are counted: `create_topic` returns before they have leaders."""
    partitions = tuple(PartitionDescription(n, -1, 0, (1, 2, 3), (1, 2, 3), ()) for n in range(100))
    topic = TopicDescription("clicks", bytes(16), partitions, 1 << 20)
    assert repr(topic) == "TopicDescription('clicks', partitions=100, replication_factor=3)"
