"""Broker: stores partitions and serves produce and fetch requests."""
