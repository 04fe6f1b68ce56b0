"""Mirrors: copies of topics in another cluster, with the same offsets; promotion; `headrace promote`."""
