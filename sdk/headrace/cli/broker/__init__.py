"""`headrace broker`: describe, drain and remove brokers."""
