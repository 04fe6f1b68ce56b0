"""Placement policies: their text, and what a set of replicas lacks."""

import pytest
from headrace.placement.moves import PlanBroker
from headrace.placement.policy import RACK, UNAWARE, PlacementPolicy, parse_placement
from headrace.wire.errors import InvalidConfigError
from hypothesis import given
from hypothesis import strategies as st

policies = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._-]{1,8}", fullmatch=True), st.integers(1, 3), min_size=1, max_size=3
)


@given(policies, st.randoms(use_true_random=False))
def test_parse_placement_of_any_order_gives_one_text(counts: dict[str, int], chance: st.DataObject) -> None:
    """The canonical text is that of the sorted names, and parses to an equal policy."""
    parts = [f" {name}:{count} " for name, count in counts.items()]
    chance.shuffle(parts)  # type: ignore[attr-defined]
    policy = parse_placement(",".join(parts))
    assert policy.text == ",".join(f"{name}:{counts[name]}" for name in sorted(counts))
    assert parse_placement(policy.text) == policy
    assert policy.replication_factor == sum(counts.values())


@given(policies)
def test_slots_alternate_between_data_centers(counts: dict[str, int]) -> None:
    """Each data center as often as the policy says; the first slots are all different."""
    slots = PlacementPolicy("", tuple(sorted(counts.items()))).slots(0)
    assert {name: slots.count(name) for name in set(slots)} == counts
    assert len(set(slots[: len(counts)])) == len(counts)


def test_parse_placement_names_the_two_policies_without_numbers() -> None:
    """They fix no number of replicas."""
    assert (parse_placement("rack"), parse_placement("unaware")) == (RACK, UNAWARE)
    assert (RACK.slots(3), RACK.replication_factor) == ((None, None, None), 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is none of the policies"),
        ("Rack", "is none of the policies"),
        ("east", "is none of the policies"),
        ("east:0", "is none of the policies"),
        ("east:2,west", "has 'west'"),
        ("east:2,", "has ''"),
        ("east:1,rack", "has 'rack'"),
        ("ea st:1,west:1", "has 'ea st:1'"),
        ("east:1,east:1", "names the data center east twice"),
        ("east:5,west:5", "has 10 replicas, more than 9"),
    ],
)
def test_parse_placement_refuses_other_text(text: str, problem: str) -> None:
    """The message has the value, the problem and the allowed values."""
    with pytest.raises(InvalidConfigError) as failure:
        parse_placement(text)
    assert failure.value.message == f"placement = {text!r} {problem}"
    assert "east:2,west:1" in failure.value.action


def test_mismatch_says_what_is_where() -> None:
    """Too many, too few, and brokers that are down, which may be anywhere, or name no data center."""
    policy, data_centers = parse_placement("a:2,b:1"), {1: "a", 2: "a", 3: "b", 4: "b", 5: ""}
    assert policy.mismatch(data_centers, (3, 1, 2)) == ""
    assert policy.mismatch(data_centers, (1, 9, 3)) == ""
    assert policy.mismatch(data_centers, (1, 3, 4)) == "a:1,b:2"
    assert policy.mismatch(data_centers, (1, 2)) == "a:2"
    assert policy.mismatch(data_centers, (1, 2, 5)) == "a:2,none:1"
    assert policy.mismatch(data_centers, (9, 3, 4)) == "b:2,unknown:1"
    assert RACK.mismatch(data_centers, (3, 4)) == ""


def test_failure_domains_are_named_from_the_top() -> None:
    """A rack of the same name in another data center is another rack; a broker without a host is one of its own."""
    west, east = PlanBroker(1, "r1", data_center="west"), PlanBroker(2, "r1", data_center="east")
    assert RACK.rack_of(west) != RACK.rack_of(east)
    assert UNAWARE.rack_of(west) == UNAWARE.rack_of(east)
    assert UNAWARE.host_of(west) != UNAWARE.host_of(east)
    assert UNAWARE.host_of(PlanBroker(1, "r1", "h")) == UNAWARE.host_of(PlanBroker(2, "r2", "h"))
