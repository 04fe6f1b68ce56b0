"""`headrace fetch`: a topic of a cluster as a directory."""
