"""The coordinator: topics, metadata, placement, producer ids, and one of them the controller. All state is in etcd."""
