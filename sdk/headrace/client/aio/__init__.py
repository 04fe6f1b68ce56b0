"""The asyncio shells over the client's parts; `headrace.aio` names what is public."""
