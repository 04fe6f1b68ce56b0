"""`headrace table`: tables and their rows."""
