"""What the generated pages of docs/reference are made of; called by `tools/docs.py`."""
