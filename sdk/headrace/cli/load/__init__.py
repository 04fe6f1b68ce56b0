"""`headrace load`: topics as tables of files."""
