"""The public API, generated from proto/headrace/v1 by `make proto`."""
