"""`headrace cluster`: describe, health and log levels."""
