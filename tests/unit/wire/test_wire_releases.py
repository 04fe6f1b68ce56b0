"""Which releases work together."""

import pytest
from headrace.wire.errors import UnsupportedVersionError
from headrace.wire.releases import CAPABILITIES, RELEASE, are_close, check_peer


@pytest.mark.parametrize(
    ("releases", "close"),
    [
        (("0.1.0", "0.2.7"), True),
        (("0.2.0", "0.1.9", "0.2.1rc1"), True),
        (("0.1.0", "0.2.0", "0.3.0"), False),
        (("0.9.0", "1.0.0"), False),
        (("", "0.1.0"), False),
        (("nightly", "nightly"), True),
    ],
)
def test_releases_are_close_up_to_one_minor(releases, close):
    """Patch releases do not count; what is no release is close to itself alone."""
    assert are_close(releases) is close


def test_a_peer_that_says_nothing_is_taken_as_it_is():
    """Programs that headrace did not write; and one that says all that is needed."""
    check_peer("it", "", (), ("batches.1",))
    check_peer("it", RELEASE, CAPABILITIES, CAPABILITIES)


@pytest.mark.parametrize("release", ["9" * 10_000, f"0.{'1' * 5_000}.0", "\u0660.\u0661.\u0660"])
def test_a_long_or_foreign_number_is_refused_shortly(release):
    """It is not converted: Python does not convert 4,300 digits or more."""
    with pytest.raises(UnsupportedVersionError) as refused:
        check_peer("it", release, ())
    assert len(str(refused.value)) < 300
