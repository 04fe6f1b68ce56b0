"""Audit log: who did what, as records of the topic `__audit` (docs/reference/audit.md)."""
