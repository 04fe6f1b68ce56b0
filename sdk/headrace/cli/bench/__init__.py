"""`headrace bench`: throughput and latency of a cluster."""
