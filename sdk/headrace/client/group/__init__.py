"""Membership in a consumer group: joining, heartbeats, assignments and committed offsets."""
