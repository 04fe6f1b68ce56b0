"""Generators of the pages in docs/reference, called by `tools/docs.py`."""
