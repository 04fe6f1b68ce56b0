"""The public `Consumer` and `Reader`, blocking and asyncio."""
