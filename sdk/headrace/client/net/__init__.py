"""Connections to brokers: channels, TLS, metadata of partitions and groups, and the native protocol."""
