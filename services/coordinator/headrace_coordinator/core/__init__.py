"""Pure logic of the coordinator: no clock, randomness, asyncio, gRPC, logging or files.

`placement` assigns replicas to brokers, `election` elects leaders, `topics` and `topic_writes` create, change and
delete topics, `control` computes the controller's writes. The next state of a consumer group is computed by
`headrace.groups`.
"""
