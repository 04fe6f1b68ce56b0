"""Schemas of keys and values: the client of the registry, and codecs that use it."""
