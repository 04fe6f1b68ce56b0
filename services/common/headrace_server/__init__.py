"""What headrace's services share: metastore, keys, views, topic configs, settings, lifecycle, telemetry, RPC server.

Brokers and coordinators import this package; it imports nothing of theirs and, of the SDK, only `headrace.wire` and
`headrace.v1`.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # Where it finds `rich` structlog imports all of it for tracebacks in colours: a tenth of the CPU of a start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
