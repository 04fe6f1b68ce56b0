"""A topic that is deleted and created again under every kind of client, on a real cluster (PROTOCOL H26).

Nothing of the old life is sent to the new one, no record of the new life is skipped, and the application is told.
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
from itertools import islice

import headrace
import pytest
from headrace import Outcome, TopicPartition, aio
from headrace.wire.errors import UnknownTopicError, UnknownTopicIdError

WAIT = 90.0
OLD, NEW = 100, 150


class Topic:
    """One topic of one partition, and a hand that makes it anew."""

    def __init__(self, cluster, name):
        self.name = name
        self.where = TopicPartition(name, 0)
        self.settings = {"bootstrap_servers": cluster.bootstrap_servers}
        self.ids = []
        self.admin = headrace.Admin(**self.settings)
        self.create(b"old", OLD)

    def create(self, word, count):
        self.admin.create_topic(self.name, partitions=1)
        (described,) = self.admin.describe_topics([self.name])
        self.ids.append(described.topic_id)
        with headrace.Producer(**self.settings, batch_records=10) as producer:
            producer.send_many(self.name, values(word, count), partition=0)

    def make_anew(self, count=NEW):
        self.admin.delete_topic(self.name)
        self.create(b"new", count)


def values(word, count):
    return [b"%s-%d" % (word, n) for n in range(count)]


@pytest.fixture
def topic(headrace_cluster, topic_name):
    made = Topic(headrace_cluster, topic_name)
    yield made
    made.admin.close()


def take(records, count):
    """The values of the next records; an error that says that the topic was away for a moment is passed over."""
    found = []
    while len(found) < count:
        try:
            found += [record.value for record in islice(iter(records), count - len(found))]
        except (UnknownTopicError, UnknownTopicIdError):
            continue
    return found


def test_a_consumer_without_a_group_skips_nothing(topic, caplog):
    with headrace.Consumer(topic.name, **topic.settings, auto_offset_reset="earliest") as consumer:
        assert take(consumer, OLD) == values(b"old", OLD)
        topic.make_anew()
        assert take(consumer, NEW) == values(b"new", NEW)
    (told,) = [message for message in caplog.messages if "created again" in message]
    assert all(topic_id.hex() in told for topic_id in topic.ids)


def test_a_consumer_that_selects_errors_gets_both_ids(topic):
    with headrace.Consumer(**topic.settings, auto_offset_reset="error") as consumer:
        consumer.assign({topic.where: 0})
        assert take(consumer, OLD) == values(b"old", OLD)
        topic.make_anew()
        with pytest.raises(headrace.TopicRecreatedError) as caught:
            take(consumer, 1)
        assert [caught.value.old_topic_id, caught.value.new_topic_id] == topic.ids
        consumer.seek(topic.where, 0)
        assert take(consumer, NEW) == values(b"new", NEW)


def test_an_asyncio_consumer_skips_nothing(topic):
    async def work():
        async with aio.Consumer(topic.name, **topic.settings, auto_offset_reset="earliest") as consumer:
            found = []
            while len(found) < OLD + NEW:
                try:
                    found += [record.value for record in await consumer.poll(1.0)]
                except (UnknownTopicError, UnknownTopicIdError):
                    continue
                if len(found) == OLD and len(topic.ids) == 1:
                    await asyncio.to_thread(topic.make_anew)
            assert found == [*values(b"old", OLD), *values(b"new", NEW)]

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_a_consumer_of_a_group_skips_nothing(topic):
    with headrace.Consumer(
        topic.name, **topic.settings, auto_offset_reset="earliest", group_id=f"g-{topic.name}"
    ) as consumer:
        assert take(consumer, OLD) == values(b"old", OLD)
        consumer.commit()
        topic.make_anew()
        assert take(consumer, NEW) == values(b"new", NEW)


def test_handlers_of_a_group_get_every_record_of_both_lives(topic):
    seen, all_seen = [], threading.Event()
    remade = threading.Event()

    def handle(record):
        seen.append(record.value)
        if len(seen) == OLD:
            remade.set()
        if len(set(seen)) == OLD + NEW:
            all_seen.set()
            consumer.stop()

    def remake():
        assert remade.wait(WAIT)
        topic.make_anew()
        if not all_seen.wait(WAIT):
            consumer.stop()

    with headrace.Consumer(
        topic.name, **topic.settings, auto_offset_reset="earliest", group_id=f"g-{topic.name}"
    ) as consumer:
        helper = threading.Thread(target=remake)
        helper.start()
        consumer.run(handle)
        helper.join(WAIT)
    assert set(seen) == {*values(b"old", OLD), *values(b"new", NEW)}


def test_a_reader_ends_with_an_error_that_has_both_ids(topic):
    """A range is of one life; what follows under the name is not in it."""
    with headrace.Reader(topic.name, **topic.settings, prefetch_bytes=1, max_partition_fetch_bytes=1) as reader:
        records = iter(reader)
        assert next(records).value == b"old-0"
        topic.make_anew()
        found = []
        with pytest.raises((headrace.TopicRecreatedError, UnknownTopicError, UnknownTopicIdError)):
            found.extend(record.value for record in records)
        assert set(found) <= set(values(b"old", OLD))
        error = None
        while not isinstance(error, headrace.TopicRecreatedError):  # It may have looked while the topic was away.
            with pytest.raises((headrace.TopicRecreatedError, UnknownTopicError, UnknownTopicIdError)) as caught:
                reader.read(WAIT)
            error = caught.value
        assert [error.old_topic_id, error.new_topic_id] == topic.ids


def test_the_command_line_ends_with_both_ids(topic):
    command = [sys.executable, "-m", "headrace.cli", "consume", topic.name, "-o", "start"]
    process = subprocess.Popen(
        [*command, "-b", topic.settings["bootstrap_servers"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for _ in range(OLD):
            assert process.stdout.readline().startswith("old-")
        topic.make_anew()
        rest, complaint = process.communicate(timeout=WAIT)
    finally:
        process.kill()
        process.wait()
    assert rest == ""
    assert process.returncode != 0
    assert "created again" in complaint or "there is no topic" in complaint.lower()


def error_at_the_end():
    """Closing a producer raises what it could not deliver, besides what each future says."""
    return contextlib.suppress(headrace.DeliveryError)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_producer_sends_nothing_of_the_old_life_to_the_new_one(topic, is_async):
    """Each record is acknowledged in the life it was sent to or fails, definitely where it cannot have been stored."""
    outcomes = {}

    def note(value, result):
        outcomes[value] = result

    def send_all(producer, word, count):
        return [(value, producer.send(topic.name, value, partition=0)) for value in values(word, count)]

    def settle(futures):
        for value, future in futures:
            try:
                note(value, future.result(WAIT))
            except headrace.HeadraceError as error:
                note(value, error)

    if is_async:

        async def work():
            async with aio.Producer(**topic.settings, linger_ms=5) as producer:
                before = [(value, await producer.send(topic.name, value, partition=0)) for value in values(b"a", 50)]
                await asyncio.to_thread(topic.make_anew, 1)
                while True:
                    after = [(value, await producer.send(topic.name, value, partition=0)) for value in values(b"b", 5)]
                    for value, future in [*before, *after]:
                        try:
                            note(value, await future)
                        except headrace.HeadraceError as error:
                            note(value, error)
                    if not any(isinstance(outcomes[value], headrace.HeadraceError) for value, _ in after):
                        return
                    before = []

        with error_at_the_end():
            asyncio.run(asyncio.wait_for(work(), WAIT))
    else:
        with error_at_the_end(), headrace.Producer(**topic.settings, linger_ms=5) as producer:
            before = send_all(producer, b"a", 50)
            topic.make_anew(1)
            while True:
                after = send_all(producer, b"b", 5)
                settle([*before, *after])
                if not any(isinstance(outcomes[value], headrace.HeadraceError) for value, _ in after):
                    break
                before = []
    with headrace.Reader(topic.name, **topic.settings) as reader:
        stored = [record.value for record in reader]
    assert not any(value.startswith(b"a-") for value in stored), "a record of the old life is in the new one"
    assert [value for value in stored if value.startswith(b"b-")][-5:] == values(b"b", 5)
    for value, outcome in outcomes.items():
        if isinstance(outcome, headrace.HeadraceError) and outcome.outcome == Outcome.NOT_APPLIED:
            assert value not in stored
