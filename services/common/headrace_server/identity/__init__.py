"""Identity and rights of callers (docs/guides/identity.md)."""
