"""`Consumer.run`: handlers called in threads or tasks, with retries, dead letters and offsets in order."""
