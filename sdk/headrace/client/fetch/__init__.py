"""Fetching: which partitions are read from where, the calls in flight, and the decoding of what they return."""
