"""Common parts of the services: metastore, keys, views, topic configs, settings, lifecycle, telemetry, RPC server.

Brokers and coordinators import this package. It imports nothing from them, and only `headrace.wire` and `headrace.v1`
from the SDK.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog would import all of `rich`, if installed, for coloured tracebacks: a tenth of the CPU of a start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
