"""`headrace schema`: schemas of the registry."""
