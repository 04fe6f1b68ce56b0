"""`headrace partition`: describe, move and elect, and what is wrong with a partition."""
