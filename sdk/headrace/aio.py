"""The asyncio classes: `Producer`, `Consumer`, `Reader`, `Admin`, with the settings and the meaning of the blocking ones.

They are a shell around the same parts, driven by the same calls on gRPC's threads: the event loop encodes nothing, checks no
sum, and waits for no lock longer than an append. What may wait is awaited; what cannot is a plain method.
"""

from headrace.client.aio_consumer import Consumer, Reader
from headrace.client.loop.admin import Admin
from headrace.client.loop.producer import ManyReceipt, Producer, Receipt

__all__ = ["Admin", "Consumer", "ManyReceipt", "Producer", "Reader", "Receipt"]
