"""Comparison of headrace with other systems: same bytes, guarantees, machine and time."""
