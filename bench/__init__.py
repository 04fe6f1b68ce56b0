"""Measurements: programs that print a table and write JSON. Never part of the tests."""
