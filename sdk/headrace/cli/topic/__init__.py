"""`headrace topic`: create, describe, alter and delete topics."""
