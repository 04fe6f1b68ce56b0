"""Interceptors of a producer, and the audit, which counts batches without delaying them."""
