"""Example programs. A test runs each of them."""
