"""A directory that this process has open instead of a cluster: answers the messages of the services in process.

One process writes to a directory; others read it meanwhile. The files are those of a broker, by the same engine
(`headrace.log`) and the same rules (`headrace.partition`, `headrace.groups`). Imports no asyncio, gRPC or telemetry.
`server.acquire` opens a directory; clients reach it by the setting `directory`, see `headrace.open`.
"""
