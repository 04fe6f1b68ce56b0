"""`headrace user`: users and their API keys."""
