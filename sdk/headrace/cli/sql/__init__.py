"""`headrace sql`."""
