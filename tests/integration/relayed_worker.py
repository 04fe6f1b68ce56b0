"""`headrace` whose connections go through relays: `python -m tests.integration.relayed_worker mirror run ...`.

`HEADRACE_TEST_RELAYS` has the address of the relay for each address, as JSON. Both of the asyncio SDK's ways to connect
take another address here; everything else is as shipped, also the addresses of metadata.
"""

import asyncio
import json
import os
from typing import Any

import grpc.aio

RELAYS: dict[str, str] = json.loads(os.environ["HEADRACE_TEST_RELAYS"])
_channel, _connect = grpc.aio.insecure_channel, asyncio.BaseEventLoop.create_connection


def relayed_channel(target: str, *arguments: Any, **options: Any) -> grpc.aio.Channel:
    """Return a channel to the relay."""
    return _channel(RELAYS[target], *arguments, **options)


async def relayed_connection(loop: Any, factory: Any, host: str, port: int, **options: Any) -> Any:
    """Connect to the relay."""
    near, _, number = RELAYS[f"{host}:{port}"].rpartition(":")
    return await _connect(loop, factory, near, int(number), **options)


if __name__ == "__main__":
    grpc.aio.insecure_channel = relayed_channel
    asyncio.BaseEventLoop.create_connection = relayed_connection  # type: ignore[method-assign]
    from headrace.cli.main import main

    main()
