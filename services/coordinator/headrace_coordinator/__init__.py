"""Coordinator: topics, metadata, placement, groups. One coordinator is the controller. All state is in etcd."""
