"""`headrace grant`, `revoke`, `grants` and `can`: who may do what."""
