"""`ClusterService` and `GroupService` over grpc.aio: request validation, and typed errors."""
