"""Tables: rows by their keys."""
