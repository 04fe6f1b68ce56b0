"""The values in etcd, generated from proto/headrace/internal/v1/metadata.proto."""
