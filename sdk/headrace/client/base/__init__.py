"""What every room of the client uses: settings, errors, retries, records, futures. It opens no connection."""
