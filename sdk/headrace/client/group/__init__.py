"""Membership of a consumer group: joining, heartbeats, assignments and committed offsets."""
