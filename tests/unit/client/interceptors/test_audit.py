"""What a producer claims to have sent: by topic and window, once, whatever happens to records and claims."""

import collections
import json
import os
import threading

import headrace
import headrace.aio
import pytest
from headrace.client.base import config
from headrace.client.interceptors import audit
from headrace.client.interceptors.interceptor import ProducedBatch
from headrace.wire.errors import BatchTooLargeError, Outcome, TimedOutError
from headrace.wire.ids import TopicPartition

WINDOW_MS = 1_000
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "audit_interval_ms": 100}
WAIT = 20


def ledger_for(**settings):
    settings = {"audit_topic": "audit", "audit_window_ms": WINDOW_MS, "client_id": "shop", **settings}
    return audit.AuditLedger(config.build(config.ProducerConfig, settings))


def batch_of(timestamp_ms, records, times=None):
    return ProducedBatch(TopicPartition("t", 0), records, timestamp_ms, times)


def documents(claims):
    return [json.loads(claim.value) for claim in claims]


def totals(claims):
    """Topic and window -> what all claims say together, and whether the last one is settled."""
    found = collections.defaultdict(collections.Counter)
    settled = {}
    for claim in claims:
        key = claim["topic"], claim["window_start_ms"]
        found[key].update({name: claim[name] for name in ("sent", "acknowledged", "failed", "unknown")})
        settled[key] = claim["settled"]
    return {key: (dict(counts), settled[key]) for key, counts in found.items()}


def test_records_are_counted_in_the_window_of_their_timestamp():
    """A record without a timestamp of its own carries its batch's, in the log and so in the claim."""
    ledger = ledger_for()
    assert ledger.sealed(batch_of(5_400, 3))
    assert ledger.sealed(batch_of(5_400, 4, [None, 4_999, 6_000, 6_999]))
    assert not ledger.sealed(batch_of(5_999, 1))
    counts = {claim["window_start_ms"]: claim["sent"] for claim in documents(ledger.claims(5_999))}
    assert counts == {4_000: 1, 5_000: 5, 6_000: 2}


def test_a_window_is_settled_when_it_is_over_and_nothing_is_on_its_way():
    """Counts are differences, numbered without gaps; `settled` comes last, and once."""
    ledger = ledger_for()
    first, second = batch_of(5_000, 3), batch_of(5_100, 4)
    ledger.sealed(first)
    ledger.taken(begun := ledger.claims(5_100))
    ledger.sealed(second)
    ledger.finished(first, None)
    ledger.taken(middle := ledger.claims(5_900))
    ledger.taken(over := ledger.claims(6_000))
    ledger.finished(second, None)
    ledger.taken(last := ledger.claims(6_100))
    assert not over, "nothing has changed, and something is on its way"
    claims = documents([*begun, *middle, *last])
    assert [claim["sequence"] for claim in claims] == [0, 1, 2]
    assert [claim["settled"] for claim in claims] == [False, False, True]
    assert [claim["sent"] for claim in claims] == [3, 4, 0]
    assert totals(claims)["t", 5_000][0] == {"sent": 7, "acknowledged": 7, "failed": 0, "unknown": 0}
    assert ledger.claims(7_000) == []


def test_an_outcome_that_is_known_is_claimed_as_such():
    """NOT_APPLIED is failed, APPLIED is acknowledged, and all else may be in the log."""
    ledger = ledger_for()
    errors = [
        None,
        BatchTooLargeError("x", outcome=Outcome.NOT_APPLIED),
        TimedOutError("x", outcome=Outcome.APPLIED),
        TimedOutError("x", outcome=Outcome.UNKNOWN),
    ]
    for number, error in enumerate(errors):
        batch = batch_of(5_000, 10**number)
        ledger.sealed(batch)
        ledger.finished(batch, error)
    (claim,) = documents(ledger.claims(5_000, closed=True))
    assert claim["sent"] == 1_111
    assert (claim["acknowledged"], claim["failed"], claim["unknown"], claim["settled"]) == (101, 10, 1_000, True)


def test_a_claim_that_was_not_taken_is_made_again_as_it_was():
    """The same number and bytes, so that a reader who has it twice knows; later counts are later claims."""
    ledger = ledger_for()
    ledger.sealed(batch_of(5_000, 3))
    (first,) = ledger.claims(5_000)
    ledger.sealed(batch_of(5_100, 4))
    again, second = ledger.claims(5_100)
    assert again is first
    ledger.taken([first])
    assert ledger.claims(5_200) == [second]


def test_claims_that_are_not_sent_are_bounded_and_their_numbers_missed(monkeypatch):
    """Memory is bounded while the audit topic is away; the gap in the numbers tells that something is missing."""
    monkeypatch.setattr(audit, "MAX_WAITING_CLAIMS", 3)
    ledger = ledger_for()
    for number in range(5):
        ledger.sealed(batch_of(5_000, 1))
        ledger.claims(5_000 + number)
    assert [claim["sequence"] for claim in documents(ledger.claims(6_000))] == [2, 3, 4]


def claims_in(fake, topic="audit"):
    return [json.loads(value) for part in fake.topics[topic].partitions for value in part.values()]


def sent_and_claimed(fake, claims, topic="t"):
    """Check that claims and log agree to the record, by window."""
    logged = collections.Counter()
    for part in fake.topics[topic].partitions:
        for _, batch in part.batches:
            times = headrace.wire.columns.decode_batch(batch, max_payload_bytes=2**27).timestamps()
            logged.update(at_ms // WINDOW_MS * WINDOW_MS for at_ms in times)
    claimed = {start: counts["acknowledged"] for (name, start), (counts, _) in totals(claims).items() if name == topic}
    assert claimed == logged
    assert all(settled for _, settled in totals(claims).values())


def test_claims_and_log_agree_to_the_record(fake_cluster):
    """By `send` and `send_many`, with and without timestamps; the audit topic's own records are not counted."""
    fake_cluster.create_topic("t", 3)
    fake_cluster.create_topic("audit")
    settings = {**FAST, "audit_topic": "audit", "audit_window_ms": WINDOW_MS, "audit_application": "shop"}
    with headrace.Producer(bootstrap_servers=fake_cluster.address, batch_records=7, **settings) as producer:
        for number in range(100):
            producer.send("t", b"a", timestamp_ms=number * 100 if number % 3 else None)
        producer.send_many("t", [b"b"] * 50, timestamps_ms=list(range(0, 50_000, 1_000)))
        producer.send_many("t", [b"c"] * 20)
        producer.send("audit", b'{"claim":1,"topic":"not-counted","window_start_ms":0,"sent":0,"acknowledged":0,'
                      b'"failed":0,"unknown":0,"settled":true}').result(WAIT)  # fmt: skip
    claims = [claim for claim in claims_in(fake_cluster) if claim["topic"] != "not-counted"]
    sent_and_claimed(fake_cluster, claims)
    assert {(claim["application"], claim["topic"]) for claim in claims} == {("shop", "t")}
    assert len({claim["instance"] for claim in claims}) == 1
    assert sorted(claim["sequence"] for claim in claims) == list(range(len(claims)))


def test_a_window_is_claimed_when_its_first_batch_goes_out(fake_cluster, topic):
    """A producer that is killed later has already reported that it was running."""
    fake_cluster.create_topic("audit")
    settings = {**FAST, "audit_topic": "audit", "audit_interval_ms": 3_600_000}
    with headrace.Producer(bootstrap_servers=fake_cluster.address, **settings) as producer:
        producer.send("t", b"x").result(WAIT)
        deadline = threading.Event()
        while not claims_in(fake_cluster):
            assert not deadline.wait(0.01)
        (claim,) = claims_in(fake_cluster)
        assert (claim["sent"], claim["settled"], claim["application"]) == (1, False, "headrace-python")
    assert totals(claims_in(fake_cluster))["t", claim["window_start_ms"]] == (
        {"sent": 1, "acknowledged": 1, "failed": 0, "unknown": 0},
        True,
    )


def test_records_do_not_suffer_where_there_is_no_audit_topic(fake_cluster, caplog, topic):
    """They are delivered, flush and close raise nothing, and the log says so once."""
    settings = {**FAST, "audit_topic": "missing"}
    with headrace.Producer(bootstrap_servers=fake_cluster.address, **settings) as producer:
        assert producer.send("t", b"x").result(WAIT).offset == 0
        producer.flush(timeout=WAIT)
        producer.close(timeout=3)
    complaints = [record for record in caplog.records if "audit topic missing" in record.getMessage()]
    assert len(complaints) == 1


def test_records_that_were_refused_are_claimed_as_failed(fake_cluster, faults, topic):
    """The application was told, and the audit is told the same."""
    fake_cluster.create_topic("audit")
    fake_cluster.faults.append(faults.refused_with(BatchTooLargeError("no", outcome=Outcome.NOT_APPLIED)))
    settings = {**FAST, "audit_topic": "audit", "enable_idempotence": False}
    producer = headrace.Producer(bootstrap_servers=fake_cluster.address, **settings)
    future = producer.send("t", b"x")
    assert future.exception(WAIT) is not None
    with pytest.raises(headrace.DeliveryError):
        producer.close()
    ((counts, settled),) = totals(claims_in(fake_cluster)).values()
    assert (counts["sent"], counts["acknowledged"], counts["failed"], settled) == (1, 0, 1, True)


async def test_the_asyncio_producer_claims_the_same(fake_cluster):
    """A second shell over the same counts, closed with the producer."""
    fake_cluster.create_topic("t", 2)
    fake_cluster.create_topic("audit")
    settings = {**FAST, "audit_topic": "audit", "audit_window_ms": WINDOW_MS}
    async with headrace.aio.Producer(bootstrap_servers=fake_cluster.address, **settings) as producer:
        for number in range(50):
            await producer.send("t", b"a", timestamp_ms=number * 100)
        await producer.send_many("t", [b"b"] * 20)
    sent_and_claimed(fake_cluster, claims_in(fake_cluster))


def test_a_child_process_claims_nothing_for_its_parent(fake_cluster, topic):
    """After a fork the parent's claims are the parent's."""
    fake_cluster.create_topic("audit")
    producer = headrace.Producer(bootstrap_servers=fake_cluster.address, audit_topic="audit", **FAST)
    producer.send("t", b"x").result(WAIT)
    child = os.fork()
    if child == 0:
        producer.close()
        os._exit(0)
    os.waitpid(child, 0)
    producer.close()
    claims = claims_in(fake_cluster)
    assert len({claim["sequence"] for claim in claims}) == len(claims)
    sent = sum(claim["sent"] for claim in claims)
    assert sent == 1


@pytest.mark.parametrize("name", ["no topic", "..", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(name):
    """At once, and by the name of the setting."""
    with pytest.raises(headrace.ConfigError, match="audit_topic"):
        headrace.Producer(audit_topic=name)
