"""`headrace` whose connections go through relays: `python -m tests.integration.relayed_worker mirror run ...`.

`HEADRACE_TEST_RELAYS` has the address of the relay for each address that has one, as JSON. The asyncio SDK's ways to
connect take another address here; everything else is as shipped, also the addresses of metadata. Certificates are of
hosts, and the relays are on the same host.
"""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import grpc.aio

RELAYS: dict[str, str] = json.loads(os.environ["HEADRACE_TEST_RELAYS"])
_connect = asyncio.BaseEventLoop.create_connection


def relayed(make_channel: Callable[..., grpc.aio.Channel]) -> Callable[..., grpc.aio.Channel]:
    """Return a function that makes a channel to the relay."""
    return lambda target, *arguments, **options: make_channel(RELAYS.get(target, target), *arguments, **options)


async def relayed_connection(loop: Any, factory: Any, host: str, port: int, **options: Any) -> Any:
    """Connect to the relay."""
    near, _, number = RELAYS.get(f"{host}:{port}", f"{host}:{port}").rpartition(":")
    return await _connect(loop, factory, near, int(number), **options)


if __name__ == "__main__":
    grpc.aio.insecure_channel = relayed(grpc.aio.insecure_channel)
    grpc.aio.secure_channel = relayed(grpc.aio.secure_channel)
    asyncio.BaseEventLoop.create_connection = relayed_connection  # type: ignore[method-assign]
    from headrace.cli.main import main

    main()
