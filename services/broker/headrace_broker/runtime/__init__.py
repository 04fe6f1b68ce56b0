"""I/O layer around the core: partitions over their logs, group commit, long polls, registration, maintenance."""
