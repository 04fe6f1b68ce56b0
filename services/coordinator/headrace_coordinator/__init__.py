"""The coordinator: topics, metadata, placement, producer ids, and one of them the controller. Stateless beside etcd."""
