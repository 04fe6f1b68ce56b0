"""Places for open calls and shares of dear answers."""

import pytest
from headrace.wire.errors import Outcome, ThrottledError
from headrace_server.methods import Pool
from headrace_server.places import BURST_SECONDS, MAX_RATED_PEERS, PlaceLimits, Places, Rates, peer_host


def test_a_peer_has_its_share_and_another_finds_a_place():
    """One caller's calls are refused at its share, with what to do; another's are taken, until all places are."""
    places = Places(PlaceLimits(clients=(3, 2)))
    held = [places.take(Pool.CLIENTS, "a") for _ in range(2)]
    with pytest.raises(ThrottledError, match="2 calls of clients from a are open") as caught:
        places.take(Pool.CLIENTS, "a")
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert caught.value.retry_after_ms
    places.take(Pool.CLIENTS, "b")
    with pytest.raises(ThrottledError, match=r"3 calls of clients are open, the maximum\."):
        places.take(Pool.CLIENTS, "c")
    held[0].release()
    held[0].release()
    places.take(Pool.CLIENTS, "c")


def test_pools_are_apart():
    """Clients that fill their pool leave health, administrators and brokers theirs."""
    places = Places(PlaceLimits(clients=(1, 1), administrators=(1, 1), health=(1, 1)))
    for pool in Pool:
        places.take(pool, "a")
        with pytest.raises(ThrottledError):
            places.take(pool, "a")


def test_a_place_that_was_given_up_is_taken_again_or_refused():
    """A late request has a place again when it came, if there is one."""
    places = Places(PlaceLimits(clients=(1, 1)))
    place = places.take(Pool.CLIENTS, "a")
    place.release()
    other = places.take(Pool.CLIENTS, "a")
    with pytest.raises(ThrottledError):
        place.retake()
    other.release()
    place.retake()
    place.release()
    places.take(Pool.CLIENTS, "a")


def test_a_peer_with_its_share_of_dear_answers_waits_until_it_paid_for_them():
    """A burst is free, what is over it is waited for, and other peers and methods do not wait."""
    now = 0.0
    rates = Rates(lambda: now)
    for _ in range(2):
        rates.check("a", "Dump", 1_000, "bytes")
        rates.charge("a", "Dump", 1_000 * (BURST_SECONDS - 1))
    with pytest.raises(ThrottledError, match="a exceeded 1000 bytes per second of Dump") as caught:
        rates.check("a", "Dump", 1_000, "bytes")
    rates.check("b", "Dump", 1_000, "bytes")
    rates.check("a", "Describe", 1_000, "bytes")
    now += caught.value.retry_after_ms / 1000
    rates.check("a", "Dump", 1_000, "bytes")


def test_rates_remember_a_bounded_number_of_peers():
    """The least recently charged is forgotten."""
    rates = Rates(lambda: 0.0)
    for number in range(MAX_RATED_PEERS + 10):
        rates.check(str(number), "Dump", 1, "bytes")
        rates.charge(str(number), "Dump", 100)
    rates.check("0", "Dump", 1, "bytes")
    with pytest.raises(ThrottledError):
        rates.check("11", "Dump", 1, "bytes")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", "10.0.0.1"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:5000", "2001:db8:1:2::/64"),
        ("unix:", ""),
    ],
)
def test_a_caller_is_an_address_without_its_port(peer, host):
    """Connections of one machine are one caller, and so are all addresses of an IPv6 site's network."""
    assert peer_host(peer) == host
