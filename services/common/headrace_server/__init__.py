"""What headrace's services share: metastore, keys, views, topic configs, settings, lifecycle, telemetry, RPC server.

Brokers and coordinators import this package; it imports nothing of theirs and, of the SDK, only `headrace.wire` and
`headrace.v1`.
"""
