"""Base of all client packages: settings, errors, retries, records, futures. It opens no connection."""
