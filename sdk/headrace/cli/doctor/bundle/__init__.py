"""`headrace doctor bundle`: one archive about a cluster that an operator can send on, without data and secrets."""
