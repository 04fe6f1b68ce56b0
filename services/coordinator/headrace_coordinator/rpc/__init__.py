"""`ClusterService` over grpc.aio: requests in, bounded and checked; typed errors out."""
