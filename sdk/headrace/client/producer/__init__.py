"""Producer: records are accumulated into batches, which are queued by partition and sent by broker."""
