"""Protocol logic of one partition replica, without I/O: no clock, randomness, asyncio, gRPC, logging or files.

`replica` is the state machine, `messages` its events and actions; `headrace.partition` has what needs no other replica.
 `headrace_broker.runtime` performs the actions in order and reports their completion as events.
"""
