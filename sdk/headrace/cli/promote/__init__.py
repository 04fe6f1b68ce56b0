"""`headrace promote`: topics of a directory in a cluster."""
