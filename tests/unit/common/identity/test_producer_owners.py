"""Producer ids belong to the users for whom they were drawn."""

import random

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import NotAuthorizedError
from headrace.wire.ids import OWN_PRODUCER_IDS
from headrace_server.identity.producer_owners import owner_tag, place_producer, tag_of

from tests.unit.common.identity.test_gate import Known


def test_an_id_has_the_tag_of_its_user_and_all_that_was_drawn():
    """Ids are not negative and below those that users choose; id and epoch together lose nothing of what was drawn."""
    chance = random.Random(1)
    for tag in (0, 1, tag_of("ada", "c"), 65_535):
        drawn = [0, OWN_PRODUCER_IDS - 1, *(chance.randrange(OWN_PRODUCER_IDS) for _ in range(1_000))]
        placed = [place_producer(tag, each) for each in drawn]
        assert all(owner_tag(producer_id) == tag for producer_id, _ in placed)
        assert all(0 <= producer_id < OWN_PRODUCER_IDS and 0 < epoch <= 2**16 for producer_id, epoch in placed)
        assert len(set(placed)) == len(set(drawn))


def test_tags_tell_users_and_clusters_apart():
    """Ids that users choose, and -1, which is none, have no tag, as ids of callers without an identity."""
    assert tag_of("", "c") == 0
    assert 1 <= tag_of("ada", "c") <= 65_535
    assert len({tag_of("ada", "c"), tag_of("bob", "c"), tag_of("ada", "d"), tag_of("bob", "d")}) == 4
    assert owner_tag(-1) == owner_tag(OWN_PRODUCER_IDS) == owner_tag(2**63 - 1) == owner_tag(7) == 0


@pytest.mark.parametrize("posture", [auth_pb2.POSTURE_OPEN, auth_pb2.POSTURE_OBSERVE, auth_pb2.POSTURE_REQUIRED])
def test_the_id_of_another_user_is_refused_as_the_posture_wants(posture):
    """`open` serves, `observe` serves and counts, `required` refuses and counts."""
    known = Known(posture)
    ada, bob = known.access(known.user("ada")), known.access(known.user("bob"))
    producer_id, _ = place_producer(ada.producer_tag, 4711)
    ada.check_producer(producer_id)
    for without_owner in (-1, 4711, OWN_PRODUCER_IDS + 4711):
        bob.check_producer(without_owner)
    if posture == auth_pb2.POSTURE_REQUIRED:
        with pytest.raises(NotAuthorizedError, match="was drawn for another user"):
            bob.check_producer(producer_id)
        assert known.counted("refused_calls", user="bob", method="Produce") == 1
        return
    bob.check_producer(producer_id)
    observed = known.counted("observed_refusals", user="bob", method="Produce", right="own producer id")
    assert observed == (1 if posture == auth_pb2.POSTURE_OBSERVE else None)
