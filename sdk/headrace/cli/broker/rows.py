"""Row of a broker, shared by `cluster describe` and `broker list`."""

from typing import TYPE_CHECKING

from headrace.cli.common.rendering import Column, JsonValue

if TYPE_CHECKING:
    from headrace.client.admin.rpc import BrokerDescription

BROKER_COLUMNS = (
    Column("BROKER", "broker_id"),
    Column("ADDRESS", "address"),
    Column("DATA CENTER", "data_center"),
    Column("RACK", "rack"),
    Column("HOST", "host"),
    Column("DRAINING", "draining"),
    Column("VERSION", "version"),
    Column("EPOCH", "broker_epoch", wide=True),
)


def broker_row(broker: "BrokerDescription") -> dict[str, JsonValue]:
    """Return a broker as a row."""
    return {
        "broker_id": broker.broker_id,
        "address": broker.address,
        "data_center": broker.data_center,
        "rack": broker.rack,
        "host": broker.host,
        "draining": broker.draining,
        "version": broker.version,
        "broker_epoch": broker.broker_epoch,
    }
