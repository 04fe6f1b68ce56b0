"""Connections to brokers: channels, TLS, where partitions and groups are served, and the native protocol."""
