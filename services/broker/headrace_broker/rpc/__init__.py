"""`BrokerService` over grpc.aio: requests are bounded and checked here, then handed to `runtime`."""
