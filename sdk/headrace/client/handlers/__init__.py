"""`Consumer.run`: handlers called in threads or tasks, with retries, dead letters and ordered offset commits."""
