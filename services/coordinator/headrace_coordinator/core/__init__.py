"""The coordinator's decisions, pure: no clock, randomness, asyncio, grpc, logging or files.

`placement` says where replicas go, `election` who leads, `topics` what creating, deleting and changing a topic writes,
`controller` what the controller has to do for a given view of the cluster.
"""
