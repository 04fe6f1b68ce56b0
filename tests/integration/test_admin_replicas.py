"""`Admin` about replicas on a real cluster, by the asyncio class; the command line's tests use the blocking one."""

import asyncio

from headrace import TopicPartition, aio
from headrace.wire.errors import InvalidRequestError, UnknownBrokerError, UnknownPartitionError

WAIT = 60


def test_replicas_move_leaders_change_and_brokers_drain(headrace_cluster, topic_name):
    """Each method does what it says and tells what became of each partition."""

    async def until(shows):
        async with asyncio.timeout(WAIT):
            while not await shows():
                pass

    async def work():
        async with aio.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
            await admin.create_topic(topic_name, 1, assignments=[[1, 2]])
            first = TopicPartition(topic_name, 0)

            async def partition():
                return (await admin.describe_topic(topic_name)).partitions[0]

            async with aio.Producer(bootstrap_servers=headrace_cluster.bootstrap_servers) as producer:
                await producer.send_and_wait(topic_name, b"one")
            (checked,) = await admin.reassign_partitions({first: [3, 1]}, validate_only=True)
            assert (checked.error, (await partition()).replicas) == (None, (1, 2))
            moved, absent = await admin.reassign_partitions(
                {first: [3, 1], TopicPartition(topic_name, 7): [1]}, copy_bytes_per_second=1 << 30
            )
            assert (moved.error, moved.unchanged, set(moved.replicas)) == (None, False, {1, 2, 3})
            assert isinstance(absent.error, UnknownPartitionError)
            (refused,) = await admin.reassign_partitions({first: [9]})
            assert isinstance(refused.error, UnknownBrokerError)

            async def is_moved():
                return not await admin.list_reassignments([topic_name])

            await until(is_moved)
            after = await partition()
            assert (after.replicas, set(after.in_sync_replicas), after.min_insync_replicas) == ((3, 1), {1, 3}, 1)
            (nothing,) = await admin.cancel_reassignment([first])
            assert nothing.unchanged
            (elected,) = await admin.elect_leaders(partitions=[first])
            assert (elected.error, elected.leader_id) == (None, 3)
            (unsafe,) = await admin.elect_leaders("unclean", [first], broker_id=1)
            assert isinstance(unsafe.error, InvalidRequestError)
            assert (await admin.drain_broker(3)).unchanged is False
            assert (await admin.drain_broker(3)).unchanged is True
            try:

                async def is_drained():
                    return (await partition()).leader_id == 1

                await until(is_drained)
            finally:
                assert (await admin.undrain_broker(3)).unchanged is False

            async def has_caught_up():
                logs = await admin.describe_logs(topic_name)
                followers = [each for log in logs if log.is_leader for each in log.followers]
                return {log.broker_id for log in logs} == {1, 3} and [
                    (each.broker_id, each.durable_offset, each.in_sync) for each in followers
                ] == [(3, 1, True)]

            await until(has_caught_up)
            assert [disk.broker_id for disk in await admin.describe_disks()] == [1, 2, 3]
            await admin.delete_topic(topic_name)

    asyncio.run(asyncio.wait_for(work(), WAIT))
