"""`headrace.open`: a directory in place of a cluster."""
