"""`BrokerService` over gRPC and the native protocol: request validation, then calls of `runtime`."""
