"""`headrace quota`: rates at which servers serve one user."""
