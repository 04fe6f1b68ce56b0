"""Public `Consumer` and `Reader`, blocking and asyncio."""
