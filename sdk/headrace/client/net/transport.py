"""Choice of a client's transport: connections to a cluster, or a directory that this process has open.

The modules of the transports are imported when they are needed: a directory needs no gRPC.
"""

from typing import TYPE_CHECKING

from headrace.client.base.config import ClientConfig

if TYPE_CHECKING:
    from headrace.client.net.connection import Connections
    from headrace.client.net.connection_async import AsyncConnections
    from headrace.client.net.directory import DirectoryConnections
    from headrace.client.net.directory_async import AsyncDirectoryConnections


def open_connections(what: str, config: ClientConfig) -> "Connections | DirectoryConnections":
    """Return the connections of a blocking client of this kind, such as `Producer`.

    Raises:
        ConfigError: If certificates or the credential cannot be used.
        HeadraceError: If the directory cannot be opened.
    """
    if config.directory:
        from headrace.client.net.directory import DirectoryConnections

        return DirectoryConnections(what, config)
    from headrace.client.net.connection import Connections

    return Connections(what, config)


def open_connections_async(what: str, config: ClientConfig) -> "AsyncConnections | AsyncDirectoryConnections":
    """Return the connections of an asyncio client; raises as `open_connections`."""
    if config.directory:
        from headrace.client.net.directory_async import AsyncDirectoryConnections

        return AsyncDirectoryConnections(what, config)
    from headrace.client.net.connection_async import AsyncConnections

    return AsyncConnections(what, config)
