"""A producer's interceptors: told of each batch once when it is queued and once when it has ended."""

import asyncio

import headrace
import headrace.aio
import pytest
from headrace.wire.errors import BatchTooLargeError, Outcome

WAIT = 20
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


class Recorder:
    """Keeps what it is told."""

    def __init__(self):
        self.sealed, self.finished, self.closed = [], [], []

    def on_sealed(self, batch):
        self.sealed.append(batch)

    def on_finished(self, batch, error):
        self.finished.append((batch, error))

    def close(self, timeout):
        self.closed.append(timeout)


class AsyncRecorder(Recorder):
    """As `Recorder`, closed by awaiting."""

    async def close(self, timeout):
        await asyncio.sleep(0)
        super().close(timeout)


class Broken(Recorder):
    """Raises in every method."""

    def on_sealed(self, batch):
        raise ValueError("sealed")

    def on_finished(self, batch, error):
        raise ValueError("finished")

    def close(self, timeout):
        raise ValueError("closed")


def test_each_batch_is_told_twice_and_a_retry_not_at_all(fake_cluster, faults, topic):
    """Acknowledged and refused batches; the retry after a lost answer is the same batch."""
    told = Recorder()
    fake_cluster.faults.append(faults.refused_with(BatchTooLargeError("no", outcome=Outcome.NOT_APPLIED)))
    producer = headrace.Producer(bootstrap_servers=fake_cluster.address, interceptors=[told], **FAST)
    assert producer.send("t", b"refused").exception(WAIT) is not None
    producer.send_many("t", [b"a", b"b", b"c"], timestamps_ms=[1, 2, 3])
    with pytest.raises(headrace.DeliveryError):
        producer.close(timeout=WAIT)
    assert [batch.record_count for batch in told.sealed] == [1, 3]
    assert list(told.sealed[1].timestamps_ms) == [1, 2, 3]
    assert [batch for batch, _ in told.finished] == told.sealed
    assert [error and error.code.name for _, error in told.finished] == ["BATCH_TOO_LARGE", None]
    assert told.closed == [WAIT]


def test_an_interceptor_that_raises_changes_nothing_for_the_records(fake_cluster, caplog, topic):
    """It is logged, and the next interceptor is told all the same."""
    told = Recorder()
    with headrace.Producer(bootstrap_servers=fake_cluster.address, interceptors=[Broken(), told]) as producer:
        assert producer.send("t", b"x").result(WAIT).offset == 0
    assert (len(told.sealed), len(told.finished), len(told.closed)) == (1, 1, 1)
    failures = [record for record in caplog.records if "the interceptor" in record.getMessage()]
    assert [record.exc_info[1].args[0] for record in failures] == ["sealed", "finished", "closed"]


async def test_the_asyncio_producer_awaits_the_close(fake_cluster, topic):
    """One interceptor's close returns an awaitable, and the other one's does not."""
    told, awaited = Recorder(), AsyncRecorder()
    async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address, interceptors=[told, awaited]) as producer:
        await (await producer.send("t", b"x"))
    for each in (told, awaited):
        assert (len(each.sealed), len(each.finished), len(each.closed)) == (1, 1, 1)


def test_an_object_without_the_methods_is_refused():
    """When the producer is made."""
    with pytest.raises(headrace.ConfigError, match="on_sealed"):
        headrace.Producer(interceptors=[print])
