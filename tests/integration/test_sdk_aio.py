"""The asyncio classes on a real cluster: all four, round trip."""

import asyncio

import headrace
from headrace import TopicPartition, aio

from tests.integration.on_directory import IS_ON

WAIT = 90
RECORDS = 5000


def test_a_round_trip_of_all_four_classes(headrace_cluster, topic_name):
    """What is sent comes back once, in order, whole, by Consumer and by Reader, and Admin sees it."""
    settings = {"bootstrap_servers": headrace_cluster.bootstrap_servers}

    async def work():
        async with aio.Admin(**settings) as admin:
            created = await admin.create_topic(topic_name, partitions=2, config={"retention_ms": 1_000_000})
            assert len(created.partitions) == 2
            assert (await admin.describe_config(topic_name))["retention_ms"].value == "1000000"
            async with aio.Producer(**settings, compression_type="zstd") as producer:
                first = [await producer.send(topic_name, b"%d" % n, partition=n % 2) for n in range(RECORDS)]
                await producer.flush(WAIT)
                assert [(await future).offset for future in first] == [n // 2 for n in range(RECORDS)]
                many = await producer.send_many(topic_name, [b"many"] * 1000, partition=1)
                assert sum(records for _, records in await many) == 1000
                assert (await producer.send_and_wait(topic_name, b"end", partition=0)).offset == RECORDS // 2
            latest = await admin.list_offsets(topic_name)
            assert [at.offset for at in latest.values()] == [RECORDS // 2 + 1, RECORDS // 2 + 1000]
            async with aio.Consumer(topic_name, **settings, auto_offset_reset="earliest") as consumer:
                seen = {0: [], 1: []}
                async for record in consumer:
                    assert record.offset == len(seen[record.partition])
                    seen[record.partition].append(record.value)
                    assert consumer.position(TopicPartition(topic_name, record.partition)) == record.offset + 1
                    if sum(map(len, seen.values())) == RECORDS + 1001:
                        break
                assert seen[0] == [*(b"%d" % n for n in range(0, RECORDS, 2)), b"end"]
                assert seen[1] == [*(b"%d" % n for n in range(1, RECORDS, 2)), *[b"many"] * 1000]
                assert set(consumer.lag().values()) == {0}
                await consumer.seek_to_beginning(TopicPartition(topic_name, 0))
                assert (await consumer.poll(WAIT, max_records=1))[0].value == b"0"
                assert consumer.health().healthy
            async with aio.Reader(topic_name, **settings) as reader:
                assert (await reader.to_arrow(WAIT)).num_rows == RECORDS + 1001
            if not IS_ON:  # Only a cluster has metadata in etcd.
                assert [entry async for entry in admin.dump()]
            assert await admin.describe_logs(topic_name)
            await admin.delete_topic(topic_name)
            assert topic_name not in await admin.list_topics()

    asyncio.run(asyncio.wait_for(work(), WAIT))
    assert headrace.aio is aio
