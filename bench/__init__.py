"""Benchmarks: programs that print a table and write JSON. Not part of the tests."""
