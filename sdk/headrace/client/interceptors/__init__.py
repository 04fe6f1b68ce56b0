"""What counts a producer's batches without delaying them: the audit."""
