"""Connections to brokers: channels, TLS, where partitions and groups are served, and the transfer of large calls."""
