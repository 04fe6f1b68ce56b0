"""The parts of the SDK: sans-I/O parts and the blocking and asyncio shells around them.

Applications import from `headrace` and `headrace.aio`. No service imports this package.
"""
