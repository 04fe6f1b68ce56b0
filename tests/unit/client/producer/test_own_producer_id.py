"""A producer under an id of its caller's: what it sends again is stored once, and nothing ends its epoch."""

import headrace
import pytest
from headrace.client.base.errors import ConfigError
from headrace.wire.errors import OutOfOrderSequenceError, UnknownProducerError
from headrace.wire.ids import OWN_PRODUCER_IDS

OWN = OWN_PRODUCER_IDS + 7


def producer(fake_cluster, epoch=0, **settings):
    return headrace.Producer(
        bootstrap_servers=fake_cluster.address, producer_id=OWN, producer_epoch=epoch, linger_ms=0, **settings
    )


def send(fake_cluster, values, epoch=0):
    """A life of a program: it sends two batches and is gone."""
    with producer(fake_cluster, epoch) as sending:
        for value in values:
            sending.send_many("t", [value], partition=0).result(timeout=10)


def test_a_second_life_stores_nothing_twice(fake_cluster, topic):
    """The first ended after one batch of three; the second sends all again, and asks for no id."""
    send(fake_cluster, [b"a"])
    send(fake_cluster, [b"a", b"b", b"c"])
    assert topic.partitions[0].values() == [b"a", b"b", b"c"]
    assert fake_cluster.calls["InitProducerId"] == 0


def test_a_higher_epoch_starts_anew(fake_cluster, topic):
    """The same records under the next epoch are others."""
    send(fake_cluster, [b"a"])
    send(fake_cluster, [b"a"], epoch=1)
    assert topic.partitions[0].values() == [b"a", b"a"]


@pytest.mark.parametrize("error", [OutOfOrderSequenceError("gap"), UnknownProducerError("forgotten")])
def test_a_refused_sequence_is_an_error_and_no_new_epoch(fake_cluster, faults, error, topic):
    """A producer with an id from the coordinator would raise its epoch, and store what follows; this one may not."""
    fake_cluster.faults.append(faults.refused_with(error))
    sending = producer(fake_cluster, delivery_timeout_ms=300)
    future = sending.send_many("t", [b"a"], partition=0)
    with pytest.raises(type(error)):
        future.result(timeout=10)
    behind = sending.send_many("t", [b"b"], partition=0)
    with pytest.raises(headrace.HeadraceError):
        behind.result(timeout=10)
    with pytest.raises(headrace.DeliveryError):
        sending.close(timeout=1)
    assert topic.partitions[0].values() == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"producer_id": 5}, "may be another's"),
        ({"producer_id": OWN, "acks": 0}, "needs enable_idempotence"),
    ],
)
def test_ids_of_others_and_of_no_use_are_refused(settings, says):
    """Those that coordinators give, and any where nothing is numbered."""
    with pytest.raises(ConfigError, match=says):
        headrace.Producer(**settings)
