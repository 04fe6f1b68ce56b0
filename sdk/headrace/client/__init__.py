"""Parts of the SDK: sans-I/O cores, and the blocking and asyncio I/O layers around them.

Applications import from `headrace` and `headrace.aio`. No service imports this package.
"""
