"""Copies of another log at a mirror whose leaders change, and producers who come when it is promoted (I33, H157)."""

from headrace.v1 import errors_pb2
from headrace.wire.batch import STAMP_BYTES, read_header, stamp

from tests.simulation.scenario import FIRST_PRODUCER, Scenario, record_of


def copied(records: int) -> list[bytes]:
    """Return batches of another log: each is that of a producer of the scenario."""
    found, crc = [], 0
    for offset in range(records):
        batch = record_of(FIRST_PRODUCER + offset)
        head = stamp(
            read_header(batch), base_offset=offset, append_timestamp_ms=1_700_000_000_000, leader_epoch=50,
            previous_crc=crc,
        )  # fmt: skip
        found.append(head + batch[STAMP_BYTES:])
        crc = read_header(found[-1]).crc
    return found


def test_a_retry_of_a_copied_batch_at_the_next_leader_is_a_duplicate() -> None:
    """The source's producer has no answer; it sends the batch again to the promoted mirror, which b2 leads by now."""
    scenario = Scenario()
    scenario.configure(mirror="m")
    assert not scenario.copy(copied(1), to=1, acks=-1).HasField("error")
    scenario.until_end(2, 1)
    scenario.kill(1)
    scenario.until_leads(2)
    scenario.configure(mirror="")
    sent = scenario.send(to=2)
    scenario.until(lambda: sent.answered, "b2 answers")
    assert (sent.error, sent.offset, scenario.end(2)) == (None, 0, 1)
    scenario.produce(to=2)
    scenario.start(1)
    scenario.finish()


def test_what_a_deposed_leader_has_copied_is_copied_again() -> None:
    """b1 is cut off and takes copies alone; b2 takes them again, under an epoch of its own, and b1 follows."""
    scenario = Scenario()
    log = copied(4)
    scenario.configure(mirror="m")
    scenario.copy(log[:1], to=1, acks=-1)
    scenario.separate(1, 2, 3)
    scenario.blind(1)
    assert scenario.copy(log[1:4], to=1).log_end_offset == 4
    scenario.end_session(1)
    scenario.until_leads(2)
    again = scenario.copy(log[2:], to=2)
    assert (again.error.code, again.log_end_offset) == (errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE, 1)
    assert again.log_end_crc == read_header(log[0]).crc
    assert scenario.copy(log[1:3], to=2).log_end_offset == 3
    scenario.restore_sight(1)
    scenario.reunite(1, 2, 3)
    scenario.until_end(1, 3)
    scenario.until(lambda: scenario.epochs(1) == scenario.epochs(2), "b1 has the epochs of b2")
    assert scenario.epochs(2) == [0, *[scenario.state.leader_epoch] * 2]
    scenario.configure(mirror="")
    refused = scenario.copy(log[3:], to=2)
    assert (refused.error.code, refused.log_end_offset) == (errors_pb2.ERROR_CODE_INVALID_REQUEST, 3)
    scenario.finish()
