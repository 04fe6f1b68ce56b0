"""Fetching: positions of partitions, fetch requests in flight, and decoding of fetched batches."""
