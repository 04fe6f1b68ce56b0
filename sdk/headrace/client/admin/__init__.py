"""Admin client: topics, partitions, groups, brokers, and offsets by time or leader epoch."""
