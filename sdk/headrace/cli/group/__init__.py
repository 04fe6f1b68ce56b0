"""`headrace group`: describe, lag and reset of consumer groups."""
