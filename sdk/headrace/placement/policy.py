"""Placement policy of a topic (topic config `placement`): the failure domains over which its replicas are spread.

| text | replicas of a partition |
| --- | --- |
| `unaware` | on distinct hosts; racks and data centers are ignored |
| `rack` | on as many racks, then hosts, as possible |
| `east:2,west:1` | this number in each data center; there on as many racks, then hosts, as possible |

These are the policies of Cassandra (section 5.2 of its paper), with a count for each data center.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from headrace.wire.errors import InvalidConfigError

MAX_REPLICATION_FACTOR = 9
"""More replicas slow down every write without a practical gain in durability."""
PLACEMENT_VALUES = "unaware, rack, or the replicas in each data center, such as east:2,west:1"
"""Allowed values, as text."""
_COUNT = re.compile(r"([A-Za-z0-9._-]{1,63}):([1-9])")


class BrokerLocation(Protocol):
    """Broker with its failure domains; empty text means that it names none."""

    @property
    def broker_id(self) -> int:
        """Id of the broker."""
        ...

    @property
    def data_center(self) -> str:
        """Data center."""
        ...

    @property
    def rack(self) -> str:
        """Rack, unique in its data center."""
        ...

    @property
    def host(self) -> str:
        """Host, unique in its rack; a broker without one counts as a host of its own."""
        ...


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """Parsed policy."""

    text: str = "rack"
    """Canonical text."""
    counts: tuple[tuple[str, int], ...] = ()
    """Replicas in each data center, by name; empty if the policy names none."""

    @property
    def replication_factor(self) -> int:
        """Number of replicas that the policy fixes; `0` means that it fixes none."""
        return sum(count for _, count in self.counts)

    def slots(self, replication_factor: int) -> tuple[str | None, ...]:
        """Return the data center of each replica of a partition; `None` means any.

        Data centers take turns, so that the first replicas are in different ones.
        """
        if not self.counts:
            return (None,) * replication_factor
        turns = sorted((turn, name) for name, count in self.counts for turn in range(count))
        return tuple(name for _, name in turns)

    def rack_of(self, broker: BrokerLocation) -> tuple[str, str]:
        """Return the upper failure domain over which replicas are spread; one for all brokers if it is ignored."""
        return ("", "") if self.text == "unaware" else (broker.data_center, broker.rack)

    def host_of(self, broker: BrokerLocation) -> tuple[str, str, str]:
        """Return the lower failure domain."""
        return (*self.rack_of(broker), broker.host or f"broker {broker.broker_id}")

    def may_replace(self, leaving: BrokerLocation, coming: BrokerLocation) -> bool:
        """Return whether the number of replicas in each data center stays as the policy fixes it."""
        return not self.counts or leaving.data_center == coming.data_center

    def missing(self, data_centers: Mapping[int, str], replicas: Collection[int]) -> Counter[str]:
        """Return how many more replicas each data center needs; negative if it has too many.

        `data_centers` are those of known brokers, by id; replicas on others are not counted.
        """
        missing = Counter(dict(self.counts))
        if self.counts:
            missing.subtract(data_centers[each] for each in replicas if each in data_centers)
        return missing

    def mismatch(self, data_centers: Mapping[int, str], replicas: Sequence[int]) -> str:
        """Return how distinct `replicas` differ from the counts, as text such as `east:3`; empty if they do not.

        A broker that is not in `data_centers`, because it is down, may be in any data center that has too few.
        """
        missing = self.missing(data_centers, replicas)
        if not self.counts or (len(replicas) == self.replication_factor and min(missing.values()) >= 0):
            return ""
        found = Counter(data_centers.get(each, "unknown") or "none" for each in replicas)
        return ",".join(f"{name}:{count}" for name, count in sorted(found.items()))


RACK = PlacementPolicy()
"""Default policy."""
UNAWARE = PlacementPolicy("unaware")
"""Policy without racks."""


@lru_cache(256)
def parse_placement(text: str) -> PlacementPolicy:
    """Parse a policy.

    Raises:
        InvalidConfigError: If it has another form, names a data center twice, or has too many replicas.
    """
    if text in (RACK.text, UNAWARE.text):
        return RACK if text == RACK.text else UNAWARE
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise _invalid(text, f"has {part.strip()!r}" if "," in text else "is none of the policies")
        if match[1] in counts:
            raise _invalid(text, f"names the data center {match[1]} twice")
        counts[match[1]] = int(match[2])
    policy = PlacementPolicy(
        ",".join(f"{name}:{count}" for name, count in sorted(counts.items())), tuple(sorted(counts.items()))
    )
    if policy.replication_factor > MAX_REPLICATION_FACTOR:
        raise _invalid(text, f"has {policy.replication_factor} replicas, more than {MAX_REPLICATION_FACTOR}")
    return policy


def _invalid(text: str, problem: str) -> InvalidConfigError:
    return InvalidConfigError(f"placement = {text!r} {problem}", action=f"Set placement to {PLACEMENT_VALUES}.")
