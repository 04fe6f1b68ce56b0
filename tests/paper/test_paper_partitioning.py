"""The paper's sentences about where a message goes: section 3.2, held by the SDK's partitioners."""

import random
import zlib
from itertools import pairwise

import pytest
from headrace.client.base.errors import ConfigError
from headrace.client.base.partitioner import check_partition, next_sticky
from headrace.wire.partitioning import partition_for_key


def test_section_3_2_a_randomly_selected_partition() -> None:
    """Section 3.2: each producer can publish to a partition chosen at random; every partition gets its share."""
    rng = random.Random(2011)
    chosen, current = [], -1
    for _ in range(4_000):
        current = next_sticky(current, range(8), 8, rng)
        chosen.append(current)
    counts = [chosen.count(partition) for partition in range(8)]
    assert min(counts) > 400
    assert all(first != second for first, second in pairwise(chosen))


def test_section_3_2_semantically_by_key_and_function() -> None:
    """Section 3.2: or to a partition determined by a partitioning key and a partitioning function."""
    for key in (b"", b"user-1", bytes(300)):
        assert partition_for_key(key, 12) == zlib.crc32(key) % 12 == partition_for_key(key, 12)
    assert {partition_for_key(b"user-%d" % number, 6) for number in range(200)} == set(range(6))


def test_section_3_2_the_function_may_be_the_users_own() -> None:
    """Section 3.2: the partitioning function is the user's; what it gives must be a partition of the topic."""
    assert check_partition(2, 3, "clicks") == 2
    for wrong in (3, -1, None, "0"):
        with pytest.raises(ConfigError, match="partitions 0 to 2"):
            check_partition(wrong, 3, "clicks")
