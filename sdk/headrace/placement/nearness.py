"""Distance between a client and a broker, by which clients and leaders prefer replicas (KIP-392). Pure."""

from typing import NamedTuple


class Location(NamedTuple):
    """Where a client or a broker is; parts that are not known are empty."""

    data_center: str
    rack: str


def distance(client: Location, broker: Location) -> int:
    """Return 0 for a broker in the rack of a client, 1 for one in its data center, 2 for others.

    Racks of the same name in two data centers are two racks. A client that names no data center is in any of them.
    """
    if client.data_center and client.data_center != broker.data_center:
        return 2
    return 0 if client.rack and client.rack == broker.rack else 1
