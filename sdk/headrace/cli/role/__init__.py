"""`headrace role`: sets of operations that are granted."""
