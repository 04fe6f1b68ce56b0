"""What differs between an asyncio module and the blocking one that `tools/async_to_sync.py` makes of it."""

ASYNC = True
"""What `if ASYNC and ...:` guards is left out of the blocking module; `if not ASYNC:` is for that one alone."""
